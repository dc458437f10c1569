// Which thread does the engine's work. The engine's own thread does, except while it sleeps and a thread of the program
// waits: that thread then does the work itself, so that a small collective costs no hand-over between threads. Decides
// also how a thread waits that finds nothing to do.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/time_limits.h"
#include "engine/activity.h"
#include "host/backoff.h"
#include "queue/work.h"
#include "sleep/doorbell.h"

namespace sirtaki {

// Worker: the work itself. A template, so that a step costs no virtual call. It has
//   void take_in()                     what the program's threads have handed over
//   bool progress(bool awaited)        true if anything moved; `awaited`: as Group::progress() has it
//   Activity activity() const
//   void look(Clock::time_point)       now and then, while nothing moves
//   void note_idle()                   the engine's thread begins to sleep, since nothing is under way
//   void record(const std::exception&) a helping thread met this; from now on take_in() throws
template <class Worker>
class EngineLock {
 public:
  using Holder = std::unique_lock<std::mutex>;

  // Spins and sleeps as `backoff` and `doorbell` have it.
  EngineLock(Worker& worker, Doorbell& doorbell, Backoff backoff)
      : worker_(worker), doorbell_(doorbell), backoff_(std::move(backoff)) {}
  // Before any thread works or waits.
  void set_backoff(Backoff backoff) { backoff_ = std::move(backoff); }

  // ---- the engine's thread ----

  Holder begin() {
    Holder holder(mutex_);
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return holder;
  }
  // One step, and if it moved nothing, waits for something that can move.
  void work(Holder& holder);
  // From now on no other thread does the work.
  void end() {
    ended_ = true;
    owner_.store({}, std::memory_order_relaxed);
  }
  // For waiting with a loop of the caller's.
  void pause() { backoff_.pause(doorbell_, false); }
  // Sleeps until `over`; a thread that changes it rings.
  template <class Over>
  void sleep_until(Over over);

  // ---- the program's threads ----

  // Blocks until the work is done. False if a signal may have come. With `may_help` it does the engine's work
  // meanwhile.
  bool wait(Work& awaited, bool may_help);
  // Does the engine's work for a moment; wakes the engine's thread if that was not enough.
  void poll(Work& wanted);

 private:
  // Counts a wait as long as it lasts.
  class Wait {
   public:
    explicit Wait(EngineLock& lock) : lock_(lock) { lock_.waits_begun_.fetch_add(1, std::memory_order_acq_rel); }
    ~Wait() { lock_.waits_ended_.fetch_add(1, std::memory_order_acq_rel); }

   private:
    EngineLock& lock_;
  };

  // Is this a callback of the engine's?
  bool is_held_by_this_thread() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  bool step();
  void rest(Holder& holder, const Activity& now);
  void look();
  void help(Work& wanted, std::chrono::nanoseconds limit, bool may_sleep);
  bool help_once(Work& wanted, bool may_sleep);
  void hand_back(std::uint32_t rings_before);

  Worker& worker_;
  Doorbell& doorbell_;

  // Its holder does the work. All up to the next comment is for the holder alone.
  std::mutex mutex_;
  Backoff backoff_;
  Clock::time_point next_look_;
  bool ended_ = false;

  // The holder, written by itself. Each thread compares it with its own id only, so no order is needed.
  std::atomic<std::thread::id> owner_;
  // Waits by the program's threads. A waiting thread has submitted all it means to for the time being, which may be
  // less than a locked plan expects.
  std::atomic<std::uint64_t> waits_begun_{0};
  std::atomic<std::uint64_t> waits_ended_{0};
};

template <class Worker>
bool EngineLock<Worker>::step() {
  // Read before the queue is: whatever a waiting thread submitted before is then known.
  const std::uint64_t begun = waits_begun_.load(std::memory_order_acquire);
  worker_.take_in();
  const bool moved = worker_.progress(begun > waits_ended_.load(std::memory_order_acquire));
  if (moved) backoff_.reset();
  return moved;
}

template <class Worker>
void EngineLock<Worker>::work(Holder& holder) {
  if (step()) return;
  const Activity now = worker_.activity();
  if (!now.active || !backoff_.spin(now.moving_data)) rest(holder, now);
}

template <class Worker>
void EngineLock<Worker>::rest(Holder& holder, const Activity& now) {
  SleepState how = SleepState::kAsleep;
  std::chrono::nanoseconds limit = now.longest_sleep;
  if (now.active) {
    look();
    how = SleepState::kNapping;
    limit = std::min(limit, backoff_.nap_length(now.peers_wake ? kLongestNapIfWoken : kLongestNap));
  } else {
    backoff_.reset();
    worker_.note_idle();
  }
  const std::uint32_t seen = doorbell_.prepare_sleep(how);
  if (!step()) {
    owner_.store({}, std::memory_order_relaxed);
    holder.unlock();
    doorbell_.sleep(how, seen, limit);
    holder.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  doorbell_.set_awake();
}

template <class Worker>
void EngineLock<Worker>::look() {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLivenessLook;
  worker_.look(now);
}

template <class Worker>
template <class Over>
void EngineLock<Worker>::sleep_until(Over over) {
  while (true) {
    const std::uint32_t seen = doorbell_.prepare_sleep(SleepState::kAsleep);
    if (over()) return;
    doorbell_.sleep(SleepState::kAsleep, seen, kIdleSleep);
  }
}

template <class Worker>
bool EngineLock<Worker>::wait(Work& awaited, bool may_help) {
  const Wait counted(*this);
  if (is_held_by_this_thread()) {
    throw Error(ErrorKind::kPrecondition,
                "a collective was waited for in a callback of the engine, which could then never complete it");
  }
  if (may_help) {
    const Holder holder(mutex_, std::try_to_lock);
    if (holder.owns_lock() && !ended_) {
      help(awaited, kHelp, true);
      return awaited.done();
    }
  }
  doorbell_.ring(true);
  return awaited.wait();
}

template <class Worker>
void EngineLock<Worker>::poll(Work& wanted) {
  if (!is_held_by_this_thread()) {
    const Holder holder(mutex_, std::try_to_lock);
    // Not while data moves: a piece of another call's large tensor may take long.
    if (holder.owns_lock() && !ended_ && !worker_.activity().moving_data) help(wanted, kShortHelp, false);
  }
  if (!wanted.done()) doorbell_.ring(true);
}

// By the holder. Returns when the work is done, or when the engine's thread can do better.
template <class Worker>
void EngineLock<Worker>::help(Work& wanted, std::chrono::nanoseconds limit, bool may_sleep) {
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const std::uint32_t rings_before = doorbell_.rings();
  doorbell_.set_awake();
  try {
    const auto until = Clock::now() + limit;
    while (!wanted.done() && Clock::now() < until && help_once(wanted, may_sleep)) {
    }
    hand_back(rings_before);
  } catch (const std::exception& error) {
    worker_.record(error);
    doorbell_.set_awake();
    doorbell_.wake_engine();
  }
  owner_.store({}, std::memory_order_relaxed);
}

// False if there is nothing more to do for this thread.
template <class Worker>
bool EngineLock<Worker>::help_once(Work& wanted, bool may_sleep) {
  if (step()) return true;
  const Activity now = worker_.activity();
  if (backoff_.spin(now.moving_data)) return true;
  look();
  if (!may_sleep || !now.peers_wake) return false;
  const std::uint32_t seen = doorbell_.prepare_sleep(SleepState::kHelperAsleep);
  WakeReason reason = WakeReason::kWoken;
  if (!step() && !wanted.done()) reason = doorbell_.sleep(SleepState::kHelperAsleep, seen, kHelp);
  doorbell_.set_awake();
  return reason == WakeReason::kWoken;
}

// The engine's thread sleeps, and is to be rung again as if nothing had happened. It is woken if there is more to do,
// or if it was rung meanwhile.
template <class Worker>
void EngineLock<Worker>::hand_back(std::uint32_t rings_before) {
  backoff_.reset();
  doorbell_.prepare_sleep(SleepState::kAsleep);
  if (step() || worker_.activity().active || doorbell_.rings() != rings_before) doorbell_.wake_engine();
}

}  // namespace sirtaki
