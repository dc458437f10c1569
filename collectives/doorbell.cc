#include "doorbell.h"

#include "futex.h"

namespace sirtaki {

void Doorbell::ring(bool urgent) {
  rings_.fetch_add(1);
  const std::uint32_t state = state_.load();
  if (state == kAsleep || (state == kNapping && urgent)) futex_wake_all(rings_);
}

bool Doorbell::wait(std::uint32_t how, std::chrono::nanoseconds limit) {
  if (rings_.load() == heard_) {
    state_.store(how);
    futex_wait(rings_, heard_, limit);
    state_.store(kAwake);
  }
  const std::uint32_t rings = rings_.load();
  const bool rung = rings != heard_;
  heard_ = rings;
  return rung;
}

}  // namespace sirtaki
