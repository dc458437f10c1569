// How other threads get the engine's attention. One sleeper, any number of ringers; a ring is never lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sirtaki {

class Doorbell {
 public:
  // Wakes the engine if it sleeps. A ring that is not urgent leaves it in a nap, from which it returns soon anyway:
  // this saves the system call for gradients that are submitted while others are under way.
  void ring(bool urgent);

  // Engine only: returns at once if it was rung since the last return, else when rung or after `limit`.
  // True if it was rung.
  bool sleep(std::chrono::nanoseconds limit) { return wait(kAsleep, limit); }
  bool nap(std::chrono::nanoseconds limit) { return wait(kNapping, limit); }

 private:
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kNapping = 1;
  static constexpr std::uint32_t kAsleep = 2;

  bool wait(std::uint32_t how, std::chrono::nanoseconds limit);

  // Sequentially consistent: the ringer adds a ring, then looks whether the engine sleeps; the engine says that it
  // sleeps, then (in the futex) looks for a ring. One of the two sees the other.
  std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> state_{kAwake};
  std::uint32_t heard_ = 0;
};

}  // namespace sirtaki
