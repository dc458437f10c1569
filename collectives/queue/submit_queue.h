// The queue from the program's threads to the engine's thread: checked and named submissions, and calls to run there.
// Its mutex also guards the table of process sets, so that a submission needs only one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "observer/observer.h"
#include "queue/process_sets.h"
#include "queue/submission.h"
#include "sleep/doorbell.h"

namespace sirtaki {

// How the engine's thread notices a submission.
enum class WakeUp {
  kNow,         // it is woken
  kByCaller,    // the caller calls Engine::wait(), poll() or wake() right afterwards
  kSoon,        // more probably follow. If the engine's thread has no core of its own, it begins a little later
  kIfCoreFree,  // the caller has other work before it waits. The engine's thread is not woken if it has no core of its
                // own and all ranks share this host: it would only take the core from the caller
};

class SubmitQueue {
 public:
  struct Entry {
    int process_set;
    Submission submission;
    std::shared_ptr<Work> after;  // an earlier call of the same name that must be done first, or null
  };

  SubmitQueue(int rank, int job_size, Doorbell& doorbell, const Observers& observers)
      : doorbell_(doorbell), observers_(observers), sets_(rank, job_size) {}

  // ---- any thread ----

  // Throws Error at once for wrong arguments that this rank can detect alone, and after close(). The request's root is
  // a global rank. An empty name gets a number; a send or a receive always gets its name here. `splits` are the global
  // ranks for add_process_set, the id for remove_process_set.
  std::shared_ptr<Work> put(int process_set, Submission submission, WakeUp wake_up = WakeUp::kNow);
  // Runs the call on the thread that does the engine's work, before it takes further submissions.
  void post(std::function<void()> call, bool wakes = true);
  // From now on put() throws this error. A failure of the job (kAborted) replaces another error.
  void close(const Error& error);

  // Were all submissions that nothing has taken yet made with kSoon, and the engine's thread has no core of its own?
  bool may_gather() const { return may_gather_.load(std::memory_order_acquire); }

  // Call it before other threads use the queue. `has_core`: the engine's thread has a core of its own, or there are
  // several hosts.
  void set_has_core(bool has_core) { has_core_ = has_core; }
  bool has_core() const { return has_core_; }

  // The program has read a result, or is about to. Its next submissions may depend on that result.
  void begin_epoch() { epoch_.fetch_add(1, std::memory_order_release); }

  // Calls `call` with the table of process sets, under the lock.
  template <class Call>
  auto with_sets(Call&& call) {
    const std::lock_guard lock(mutex_);
    return call(sets_);
  }

  // ---- the thread that does the engine's work ----

  // Is there anything to take? Does not lock, since the program's threads would have to wait. The load of rings() comes
  // first: if it sees a ring, the next load also sees the change before that ring.
  bool changed() const {
    static_cast<void>(doorbell_.rings());
    return changes_.load(std::memory_order_acquire) != changes_taken_ || !postponed_.empty();
  }
  // Runs the calls, which may throw. From now on next() returns the submissions that were queued before.
  void take();
  // The next submission whose earlier call is done; null if there is none. Valid until the next call.
  Entry* next();
  // All submissions that next() has not returned. Drops the calls.
  std::vector<Entry> take_all();

 private:
  void count_change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  Doorbell& doorbell_;
  const Observers& observers_;
  bool has_core_ = true;
  std::atomic<bool> may_gather_{false};
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<std::uint32_t> changes_{0};  // written under the mutex
  std::uint32_t changes_taken_ = 0;
  std::vector<Entry> taken_;
  std::size_t returned_ = 0;  // of taken_
  std::vector<Entry> postponed_;

  mutable std::mutex mutex_;
  ProcessSets sets_;
  std::vector<Entry> entries_;
  std::vector<std::function<void()>> calls_;
  std::optional<Error> refusal_;
};

}  // namespace sirtaki
