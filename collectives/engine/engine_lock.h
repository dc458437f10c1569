// Decides which thread does the engine's work. Usually that is the engine's own thread. But if it sleeps while a thread
// of the program waits, that thread does the work itself. So a small collective needs no switch of threads. Also
// decides how a thread waits when there is nothing to do.
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

// Worker: the work itself. A template parameter, so that a step needs no virtual call. It has
//   void take_in()                     takes what the program's threads have queued
//   bool progress(bool awaited)        true if anything moved; `awaited`: see Group::progress()
//   Activity activity() const
//   void look(Clock::time_point)       called from time to time while nothing moves
//   bool shares_core() const           the engine's thread would take the core from the program
//   bool may_gather() const            so it would now, and the program probably submits more
//   void before_sleep()                the thread is about to sleep: what arrives from now on must ring the doorbell
//   void note_idle()                   the engine's thread begins to sleep, since nothing is under way
//   void record(const std::exception&) a helping thread caught this error; from now on take_in() throws
template <class Worker>
class EngineLock {
 public:
  using Holder = std::unique_lock<std::mutex>;

  // Spins by `backoff` and sleeps by `doorbell`.
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
  // Makes one step. If nothing moved, waits until there may be work.
  void work(Holder& holder);
  // From now on no other thread does the work.
  void end() {
    ended_ = true;
    owner_.store({}, std::memory_order_relaxed);
  }
  // For a wait in the caller's own loop.
  void pause() { backoff_.pause(doorbell_, false); }
  // Sleeps until over() is true. A thread that makes it true must ring the doorbell.
  template <class Over>
  void sleep_until(Over over);

  // ---- the program's threads ----

  // Blocks until the work is done. False if a signal may have come. With `may_help`, does the engine's work meanwhile.
  bool wait(Work& awaited, bool may_help);
  // Does the engine's work for a moment; wakes the engine's thread if that was not enough.
  void poll(Work& wanted);

 private:
  // Counts a wait of a program's thread for other ranks' votes.
  class Wait {
   public:
    Wait(EngineLock& lock, const Work& awaited) : lock_(lock), counts_(awaited.needs_no_vote() ? 0 : 1) {
      lock_.waits_begun_.fetch_add(counts_, std::memory_order_acq_rel);
    }
    ~Wait() { lock_.waits_ended_.fetch_add(counts_, std::memory_order_acq_rel); }

   private:
    EngineLock& lock_;
    std::uint64_t counts_;
  };

  // Is this thread inside a callback of the engine?
  bool is_held_by_this_thread() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Should the engine's thread sleep until another rank wakes it, and not look by itself?
  bool waits_for_peers(const Activity& now) const { return now.peers_wake && worker_.shares_core(); }
  bool step();
  void rest(Holder& holder, const Activity& now);
  void sleep(Holder& holder, SleepState how, std::uint32_t seen, std::chrono::nanoseconds limit);
  void look();
  void help(Work& wanted, std::chrono::nanoseconds limit, bool may_sleep);
  bool help_once(Work& wanted, bool may_sleep);
  void hand_back(std::uint32_t rings_before);

  Worker& worker_;
  Doorbell& doorbell_;

  // Its holder does the work. The members up to the next comment are only for the holder.
  std::mutex mutex_;
  Backoff backoff_;
  Clock::time_point next_look_;
  bool ended_ = false;

  // The holder's id, written by the holder. Each thread only compares it with its own id, so no memory order is needed.
  std::atomic<std::thread::id> owner_;
  // Waits by the program's threads. A waiting thread submits nothing more for now, which may be less than a locked plan
  // expects.
  std::atomic<std::uint64_t> waits_begun_{0};
  std::atomic<std::uint64_t> waits_ended_{0};
};

template <class Worker>
bool EngineLock<Worker>::step() {
  // Read before the queue, so that take_in() gets all that a waiting thread has submitted before.
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
  if (!now.active || waits_for_peers(now) || !backoff_.spin(now.moving_data)) rest(holder, now);
}

template <class Worker>
void EngineLock<Worker>::rest(Holder& holder, const Activity& now) {
  SleepState how = SleepState::kAsleep;
  std::chrono::nanoseconds limit = now.longest_sleep;
  if (now.active) {
    look();
    how = SleepState::kNapping;
    const std::chrono::nanoseconds nap = backoff_.nap_length(now.peers_wake ? kLongestNapIfWoken : kLongestNap);
    limit = std::min(limit, waits_for_peers(now) ? std::max<std::chrono::nanoseconds>(nap, kGather) : nap);
  } else {
    backoff_.reset();
    worker_.note_idle();
  }
  const std::uint32_t seen = doorbell_.prepare_sleep(how);
  worker_.before_sleep();
  if (!step()) {
    sleep(holder, how, seen, limit);
    // The program's thread would wait for its core with each of its calls. It may also take over the work meanwhile.
    if (how == SleepState::kAsleep && worker_.may_gather()) {
      const std::uint32_t now_seen = doorbell_.prepare_sleep(SleepState::kNapping);
      if (worker_.may_gather()) sleep(holder, SleepState::kNapping, now_seen, kGather);
    }
  }
  doorbell_.set_awake();
}

template <class Worker>
void EngineLock<Worker>::sleep(Holder& holder, SleepState how, std::uint32_t seen, std::chrono::nanoseconds limit) {
  owner_.store({}, std::memory_order_relaxed);
  holder.unlock();
  doorbell_.sleep(how, seen, limit);
  holder.lock();
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
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
  const Wait counted(*this, awaited);
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
    // Not while data moves: one step may take long, for a piece of a large tensor of another call.
    if (holder.owns_lock() && !ended_ && !worker_.activity().moving_data) help(wanted, kShortHelp, false);
  }
  if (!wanted.done()) doorbell_.ring(true);
}

// Called by the holder. Returns when the work is done, or when the engine's thread should continue.
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

// False if this thread should stop helping.
template <class Worker>
bool EngineLock<Worker>::help_once(Work& wanted, bool may_sleep) {
  if (step()) return true;
  const Activity now = worker_.activity();
  if (backoff_.spin(now.moving_data)) return true;
  look();
  if (!may_sleep || !now.peers_wake) return false;
  const std::uint32_t seen = doorbell_.prepare_sleep(SleepState::kHelperAsleep);
  worker_.before_sleep();
  WakeReason reason = WakeReason::kWoken;
  if (!step() && !wanted.done()) reason = doorbell_.sleep(SleepState::kHelperAsleep, seen, kHelp);
  doorbell_.set_awake();
  return reason == WakeReason::kWoken;
}

// The engine's thread still sleeps. From now on rings must wake it again. Wakes it now if there is more to do, or if a
// ring came while this thread helped.
template <class Worker>
void EngineLock<Worker>::hand_back(std::uint32_t rings_before) {
  backoff_.reset();
  doorbell_.prepare_sleep(SleepState::kAsleep);
  worker_.before_sleep();
  if (step() || worker_.activity().active || doorbell_.rings() != rings_before) doorbell_.wake_engine();
}

}  // namespace sirtaki
