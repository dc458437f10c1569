// Lets the engine sleep, and wakes it: threads of its own process call ring(), peers use its bell. One thread sleeps at
// a time; any number of threads may ring. A ring is never lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "sleep/bell.h"
#include "sleep/futex.h"

namespace sirtaki {

class Doorbell {
 public:
  Doorbell() : own_(std::make_unique<Bell>()), bell_(own_.get()) {}

  // Uses a bell that peers can reach. Call it before any thread sleeps or rings. The bell must outlive this object.
  void attach(Bell& bell) { bell_ = &bell; }

  // For other threads. A ring that is not urgent does not end a nap, since the engine soon wakes by itself. That saves
  // a system call for each gradient that is submitted while others are under way.
  void ring(bool urgent);

  // Sleeping takes three steps. prepare_sleep() announces the sleep and returns `seen` for sleep(). Then the thread
  // checks once more for work that came before others could see the announcement. Then it calls sleep(), or set_awake()
  // if there was work.
  std::uint32_t prepare_sleep(SleepState how);
  WakeReason sleep(SleepState how, std::uint32_t seen, std::chrono::nanoseconds limit);
  void set_awake() { bell_->state.store(static_cast<std::uint32_t>(SleepState::kAwake)); }

  // All three steps, for a thread that has nothing to check.
  void nap(std::chrono::nanoseconds limit);

  // Rings by threads of this process so far.
  std::uint32_t rings() const { return bell_->rings.load(); }
  // Wakes the engine's thread, whatever state the bell shows.
  void wake_engine();

 private:
  std::unique_ptr<Bell> own_;
  Bell* bell_;
};

}  // namespace sirtaki
