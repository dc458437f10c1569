// A running collective, written as straight code that waits with co_await and is resumed by polling.
//
// The engine's one thread holds many tasks at once (one for each group), so that overlapping process sets cannot block
// each other. A task awaits anything with `bool ready()`: a transport's transfer, an MPI request, another task.
#pragma once

#include <coroutine>
#include <exception>
#include <memory>
#include <utility>

namespace sirtaki {

// An operation in progress. ready() is cheap, advances the operation, and throws if it failed.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool ready() = 0;

  // Has the operation advanced since the last call, without being ready? The polling thread then waits less.
  bool took_progress() { return std::exchange(progress_, false); }

 protected:
  void note_progress() { progress_ = true; }

 private:
  bool progress_ = false;
};
using PendingPtr = std::unique_ptr<Pending>;

class [[nodiscard]] Task {
 public:
  // Is notified when the task, or a task that it awaits, waits for a Pending. A wait without a suspension is no wait.
  class Watcher {
   public:
    virtual void on_suspended() = 0;
    virtual void on_resumed() = 0;

   protected:
    ~Watcher() = default;
  };

  struct promise_type;
  class TaskAwaiter;
  class PendingAwaiter;
  using Handle = std::coroutine_handle<promise_type>;

  // The operation that a suspended coroutine waits for; it lives in the coroutine's frame.
  class Awaiter {
   public:
    bool await_ready() { return poll(); }
    void await_suspend(Handle handle);
    void await_resume() const {}
    virtual bool poll() = 0;
    virtual bool took_progress() = 0;
    virtual bool awaits_task() const { return false; }

   protected:
    ~Awaiter() = default;
  };

  struct promise_type {
    Awaiter* waiting_for = nullptr;
    Watcher* watcher = nullptr;
    bool progress = false;
    std::exception_ptr error;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
    TaskAwaiter await_transform(Task&& task);
    PendingAwaiter await_transform(PendingPtr pending);
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Runs as far as it can without waiting. True once finished; throws what the coroutine threw.
  bool advance();

  // Call it before the first advance(). The watcher must live as long as the task.
  void watch(Watcher* watcher) {
    if (handle_) handle_.promise().watcher = watcher;
  }

  // Has the task advanced since the last call, without being finished?
  bool took_progress() { return handle_ && std::exchange(handle_.promise().progress, false); }

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  void notify(void (Watcher::*event)()) const;
  Handle handle_;
};

class Task::TaskAwaiter final : public Task::Awaiter {
 public:
  explicit TaskAwaiter(Task task) : task_(std::move(task)) {}
  bool poll() override { return task_.advance(); }
  bool took_progress() override { return task_.took_progress(); }
  bool awaits_task() const override { return true; }

 private:
  Task task_;
};

// A null pointer counts as complete, so that a transfer of nothing costs nothing.
class Task::PendingAwaiter final : public Task::Awaiter {
 public:
  explicit PendingAwaiter(PendingPtr pending) : pending_(std::move(pending)) {}
  bool poll() override { return pending_ == nullptr || pending_->ready(); }
  bool took_progress() override { return pending_ != nullptr && pending_->took_progress(); }

 private:
  PendingPtr pending_;
};

inline Task::TaskAwaiter Task::promise_type::await_transform(Task&& task) {
  task.watch(watcher);
  return TaskAwaiter(std::move(task));
}

inline Task::PendingAwaiter Task::promise_type::await_transform(PendingPtr pending) {
  return PendingAwaiter(std::move(pending));
}

}  // namespace sirtaki
