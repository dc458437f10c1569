// Which thread does the engine's work: the engine's own, or one of the program's that waits.
#include "engine/engine_lock.h"

#include <functional>
#include <optional>

#include "expect.h"

namespace sirtaki::testing {
namespace {

// An engine whose work is a function that tests give.
struct Worker {
  void take_in() {
    if (failure) throw Error(*failure);
  }
  bool progress(bool awaited) { return make_progress && make_progress(awaited); }
  Activity activity() const { return now; }
  void look(Clock::time_point) {}
  bool shares_core() const { return shares; }
  bool may_gather() const {
    if (gathers) ++asked_to_gather;
    return gathers;
  }
  void before_sleep() {}
  void note_idle() { ++idle; }
  void record(const std::exception& error) { failure = Error(ErrorKind::kAborted, error.what()); }

  std::function<bool(bool awaited)> make_progress;
  Activity now;
  std::atomic<int> idle{0};
  bool shares = false;
  std::atomic<bool> gathers{false};
  mutable std::atomic<int> asked_to_gather{0};
  std::optional<Error> failure;
};

struct Fixture {
  Worker worker;
  Doorbell doorbell;
  EngineLock<Worker> lock{worker, doorbell, Backoff(false)};
  Work work;
};

// Runs the engine's thread until it meets an exception.
std::thread start(Fixture& f, std::atomic<bool>& over) {
  return std::thread([&] {
    auto holder = f.lock.begin();
    try {
      while (!over) f.lock.work(holder);
    } catch (const Error& error) {
      f.worker.record(error);
      over = true;
    }
    f.lock.end();
  });
}

TEST_CASE("A waiting thread does the work itself") {
  Fixture f;
  std::optional<std::thread::id> worked;
  bool was_awaited = false;
  f.worker.make_progress = [&](bool awaited) {
    if (f.work.done()) return false;
    worked = std::this_thread::get_id();
    was_awaited = awaited;
    f.work.finish(Result());
    return true;
  };
  CHECK(f.lock.wait(f.work, true));
  CHECK(worked == std::this_thread::get_id());
  CHECK(was_awaited);
}

TEST_CASE("Polling does the work but is no wait") {
  Fixture f;
  bool was_awaited = false;
  f.worker.make_progress = [&](bool awaited) {
    was_awaited |= awaited;
    if (!f.work.done()) f.work.finish(Result());
    return false;
  };
  f.lock.poll(f.work);
  CHECK(f.work.done());
  CHECK(!was_awaited);
}

// A large collective of another thread's would keep the polling thread for long.
TEST_CASE("Polling leaves running collectives to the engine") {
  Fixture f;
  f.worker.now = {.active = true, .moving_data = true};
  f.worker.make_progress = [](bool) -> bool { throw Error(ErrorKind::kAborted, "no step expected"); };
  const std::uint32_t rings = f.doorbell.rings();
  f.lock.poll(f.work);
  CHECK(!f.worker.failure);
  CHECK(f.doorbell.rings() == rings + 1);
}

TEST_CASE("A callback of the engine may not wait") {
  Fixture f;
  Work other;
  std::string refused;
  f.worker.make_progress = [&](bool) {
    refused = expect_throw<Error>([&] { f.lock.wait(other, true); }, "a wait in a callback").what();
    f.lock.poll(other);  // may be called, and does not run a step within this one
    f.work.finish(Result());
    return true;
  };
  f.lock.wait(f.work, true);
  check_contains(refused, "a collective was waited for in a callback of the engine");
}

// The thread that waits sleeps in its work then, not in the engine's.
TEST_CASE("The engine sleeps until it is rung") {
  Fixture f;
  std::atomic<bool> over{false};
  std::atomic<bool> asked{false};
  f.worker.make_progress = [&](bool) {
    if (!asked.exchange(false)) return false;
    f.work.finish(Result());
    return true;
  };
  std::thread engine = start(f, over);
  while (f.worker.idle == 0) std::this_thread::yield();
  asked = true;
  f.doorbell.ring(false);
  while (!f.lock.wait(f.work, false)) {
  }
  over = true;
  f.doorbell.ring(true);
  engine.join();
  Work late;
  late.finish(Result());
  CHECK(f.lock.wait(late, true));
}

// Else it would take the core from the program with each call.
TEST_CASE("An engine that collects calls lets the thread that waits do the work") {
  Fixture f;
  std::atomic<bool> over{false};
  std::atomic<bool> asked{false};
  f.worker.make_progress = [&](bool) {
    if (!asked.exchange(false)) return false;
    f.work.finish(Result());
    return true;
  };
  std::thread engine = start(f, over);
  while (f.worker.idle == 0) std::this_thread::yield();
  f.worker.gathers = true;
  f.doorbell.ring(false);
  // It asks twice before it collects: when it is woken, and once a ring would not wake it any more.
  while (f.worker.asked_to_gather < 2) std::this_thread::yield();
  asked = true;
  while (!f.lock.wait(f.work, true)) {
  }
  CHECK(f.work.done());
  f.worker.gathers = false;
  over = true;
  f.doorbell.ring(true);
  engine.join();
}

// The engine's thread has to learn of it, since it alone ends the job.
TEST_CASE("A failure of a helping thread reaches the engines thread") {
  Fixture f;
  std::atomic<bool> over{false};
  std::atomic<bool> broken{false};
  std::atomic<int> steps{0};
  f.worker.make_progress = [&](bool) {
    if (!broken) return false;
    ++steps;
    throw Error(ErrorKind::kAborted, "wire on fire");
  };
  std::thread engine = start(f, over);
  while (f.worker.idle == 0) std::this_thread::yield();
  broken = true;
  while (!over) f.lock.poll(f.work);
  engine.join();
  CHECK(std::string(f.worker.failure->what()) == "wire on fire");
  CHECK(steps.load() == 1);
}

}  // namespace
}  // namespace sirtaki::testing
