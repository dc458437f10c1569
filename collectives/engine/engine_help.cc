// How a thread of the user's that waits for a work does the engine's work meanwhile.
#include <ctime>

#include "engine/engine.h"

namespace sirtaki {
namespace {

// Of a thread that helps: until it looks for signals.
constexpr std::chrono::milliseconds kHelperPatience{100};
// Of a thread that may not wait.
constexpr std::chrono::microseconds kMoment{100};

std::uint64_t processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// Counts a wait as long as it lasts.
class OneWait {
 public:
  OneWait(std::atomic<std::uint64_t>& begun, std::atomic<std::uint64_t>& ended) : ended_(ended) {
    begun.fetch_add(1, std::memory_order_acq_rel);
  }
  ~OneWait() { ended_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<std::uint64_t>& ended_;
};

// What a wait costs the waiting thread, if there is somewhere to add that: two calls of the kernel.
class Cost {
 public:
  explicit Cost(std::atomic<std::uint64_t>* spent) : spent_(spent), start_(spent == nullptr ? 0 : processor_time()) {}
  ~Cost() {
    if (spent_ != nullptr) spent_->fetch_add(processor_time() - start_, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t>* spent_;
  std::uint64_t start_;
};

}  // namespace

bool Engine::wait(Work& work, bool may_help) {
  epoch_.fetch_add(1, std::memory_order_release);
  if (work.done()) return true;
  const OneWait counted(waits_begun_, waits_ended_);
  const Cost cost(times_waits_.load(std::memory_order_relaxed) ? &statistics_.wait_cpu_ns : nullptr);
  if (is_engines_own(std::this_thread::get_id())) {
    throw Error(ErrorKind::kPrecondition,
                "a collective was waited for in a callback of the engine, which could then never complete it");
  }
  if (may_help) {
    const Role role(role_, std::try_to_lock);
    if (role.owns_lock() && !over_) {
      help(work, kHelperPatience, true);
      return work.done();
    }
  }
  hurry();
  return work.wait();
}

void Engine::advance(Work& work) {
  if (work.done()) return;
  if (!is_engines_own(std::this_thread::get_id())) {
    const Role role(role_, std::try_to_lock);
    // Not while data moves: a piece of somebody's large tensor may take longer than a moment.
    if (role.owns_lock() && !over_ && !outlook().moving_data) help(work, kMoment, false);
  }
  if (!work.done()) hurry();
}

bool Engine::is_engines_own(std::thread::id thread) const {
  return holder_.load() == thread || own_thread_.load() == thread;
}

// With the role, on a thread of the user's. Comes back when the work is done, or when the engine's thread can do
// better.
void Engine::help(Work& work, std::chrono::nanoseconds patience, bool may_sleep) {
  holder_ = std::this_thread::get_id();
  const std::uint32_t rings_before = doorbell_.rings();
  doorbell_.get_up();
  try {
    const auto until = Clock::now() + patience;
    while (!work.done() && Clock::now() < until && help_once(work, may_sleep)) {
    }
    hand_back(rings_before);
  } catch (const JobFailure& failure) {
    adopt(failure);
    wake_for_failure();
  } catch (const std::exception& error) {
    set_failure(error);
    wake_for_failure();
  }
  holder_ = std::thread::id();
}

// False if there is nothing more to do for this thread.
bool Engine::help_once(Work& work, bool may_sleep) {
  if (step()) return true;
  const Outlook now = outlook();
  if (backoff_.spin(now.moving_data)) return true;
  look_around();
  if (!may_sleep || !now.wakes) return false;
  const std::uint32_t heard = doorbell_.lie_down(Rest::kHelper);
  Wake wake = Wake::kWoken;
  if (!step() && !work.done()) wake = doorbell_.sleep(Rest::kHelper, heard, kHelperPatience);
  doorbell_.get_up();
  return wake == Wake::kWoken;
}

// The engine's thread sleeps, and is to be rung again as if nothing had happened. It gets up if there is more to do, or
// if somebody wanted it meanwhile.
void Engine::hand_back(std::uint32_t rings_before) {
  backoff_.reset();
  doorbell_.lie_down(Rest::kAsleep);
  if (step() || outlook().active || doorbell_.rings() != rings_before) doorbell_.wake_engine();
}

// The engine's thread deals with what a helping thread met.
void Engine::wake_for_failure() {
  doorbell_.get_up();
  doorbell_.wake_engine();
}

}  // namespace sirtaki
