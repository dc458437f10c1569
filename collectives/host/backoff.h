// How the engine waits for something that can only be polled, as MPI can: it spins for a moment if cores are free, or
// gives its core up again and again if they are not, then naps for a small fraction of the time that it has already
// waited. So waiting costs a few per cent of a core at most, and never makes an operation more than a few per cent
// longer.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "base/time_limits.h"
#include "host/core_placement.h"
#include "sleep/doorbell.h"

namespace sirtaki {

class Backoff {
 public:
  explicit Backoff(bool cores_are_free) : cores_are_free_(cores_are_free) {}
  // Spins only while no other rank of the host needs the core, and gives it up otherwise.
  explicit Backoff(CorePlacement seats) : cores_are_free_(seats.suffice()), seats_(std::move(seats)) {}

  void reset() { waiting_ = false; }

  // Spins for a moment and returns true, or false when it is time to sleep for nap_length(). `moving_data`: a
  // collective is running, whose end takes longer to come and is worth more spinning.
  bool spin(bool moving_data);
  // `longest`: how late the sleeper may see a change for which it is not woken.
  std::chrono::nanoseconds nap_length(std::chrono::nanoseconds longest = kLongestNap) const;

  // Both: one look's worth of waiting, where nothing can ring.
  void pause(Doorbell& doorbell, bool moving_data);

 private:
  bool has_core() { return cores_are_free_ && (!seats_ || !seats_->shared() || seats_->move_apart()); }

  bool cores_are_free_;
  std::optional<CorePlacement> seats_;
  bool waiting_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace sirtaki
