// How the engine waits for something that it can only poll, such as MPI. First it spins if cores are free; otherwise it
// calls sched_yield() repeatedly. Then it naps, each time for a small fraction of the time that it has already waited.
// So a long wait uses at most a few per cent of a core, and makes an operation at most a few per cent longer.
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
  // Spins only while no other rank of the host works on the same core, and yields the core otherwise.
  explicit Backoff(CorePlacement placement)
      : cores_are_free_(placement.has_cores_for_all()), placement_(std::move(placement)) {}

  void reset() { waiting_ = false; }

  // Spins for a moment and returns true, or returns false when it is time to sleep for nap_length(). `moving_data`: a
  // collective is running. That takes longer, so it spins longer.
  bool spin(bool moving_data);
  // `longest`: how late the sleeper may notice a change that does not wake it.
  std::chrono::nanoseconds nap_length(std::chrono::nanoseconds longest = kLongestNap);

  // spin(), or else a nap: for callers that no other thread wakes.
  void pause(Doorbell& doorbell, bool moving_data);

 private:
  std::chrono::nanoseconds waited();
  bool has_core() {
    return cores_are_free_ && (!placement_ || !placement_->shared() || placement_->move_to_free_core());
  }

  bool cores_are_free_;
  std::optional<CorePlacement> placement_;
  bool waiting_ = false;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace sirtaki
