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

  // Uses a bell that peers know too; before anybody sleeps or rings. It must outlive this.
  void attach(Bell& bell) { bell_ = &bell; }

  // Other threads. A ring that is not urgent leaves the engine in a nap, from which it returns soon anyway: this saves
  // the system call for gradients that are submitted while others are under way.
  void ring(bool urgent);

  // Sleeping takes three steps: lie_down() lets everybody know; then the sleeper looks once more at all that could have
  // come before they knew; then sleep(), or get_up() if there was something. lie_down() gives what sleep() needs.
  std::uint32_t lie_down(Rest how);
  Wake sleep(Rest how, std::uint32_t heard, std::chrono::nanoseconds limit);
  void get_up() { bell_->state.store(static_cast<std::uint32_t>(Rest::kNone)); }

  // All three steps, where nothing else has to be looked at.
  void nap(std::chrono::nanoseconds limit);

  // Rings by threads of this process so far.
  std::uint32_t rings() const { return bell_->rings.load(); }
  // The engine's thread, whatever it said when it lay down.
  void wake_engine();

 private:
  std::unique_ptr<Bell> own_;
  Bell* bell_;
};

}  // namespace sirtaki
