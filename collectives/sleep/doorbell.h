// How the engine sleeps and how it is woken: by threads of its own process, and by peers through its bell. One sleeper,
// any number of ringers; a ring is never lost.
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

  // Uses a bell that peers know too; before any thread sleeps or rings. It must outlive this.
  void attach(Bell& bell) { bell_ = &bell; }

  // Other threads. A ring that is not urgent leaves the engine in a nap, from which it returns soon anyway: this saves
  // the system call for gradients that are submitted while others are under way.
  void ring(bool urgent);

  // Sleeping takes three steps: prepare_sleep() announces it; then the sleeper looks once more at all that could
  // have come before they knew; then sleep(), or set_awake() if there was something. prepare_sleep() gives what sleep()
  // needs.
  std::uint32_t prepare_sleep(SleepState how);
  WakeReason sleep(SleepState how, std::uint32_t seen, std::chrono::nanoseconds limit);
  void set_awake() { bell_->state.store(static_cast<std::uint32_t>(SleepState::kAwake)); }

  // All three steps, where nothing else has to be looked at.
  void nap(std::chrono::nanoseconds limit);

  // Rings by threads of this process so far.
  std::uint32_t rings() const { return bell_->rings.load(); }
  // The engine's thread, whatever state it announced.
  void wake_engine();

 private:
  std::unique_ptr<Bell> own_;
  Bell* bell_;
};

}  // namespace sirtaki
