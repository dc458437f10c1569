#include "sleep/doorbell.h"

namespace sirtaki {

void Doorbell::ring(bool urgent) {
  bell_->rings.fetch_add(1);
  const auto rest = static_cast<Rest>(bell_->state.load());
  if (rest == Rest::kHelper) {
    bell_->helper.fetch_add(1);
    futex_wake_all(bell_->helper, FutexScope::kHost);
  } else if (rest == Rest::kAsleep || (rest == Rest::kNapping && urgent)) {
    futex_wake_all(bell_->rings, FutexScope::kHost);
  }
}

std::uint32_t Doorbell::lie_down(Rest how) {
  const std::uint32_t heard = (how == Rest::kHelper ? bell_->helper : bell_->rings).load();
  bell_->state.store(static_cast<std::uint32_t>(how));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return heard;
}

Wake Doorbell::sleep(Rest how, std::uint32_t heard, std::chrono::nanoseconds limit) {
  return futex_wait(how == Rest::kHelper ? bell_->helper : bell_->rings, heard, limit, FutexScope::kHost);
}

void Doorbell::nap(std::chrono::nanoseconds limit) {
  const std::uint32_t heard = lie_down(Rest::kNapping);
  sleep(Rest::kNapping, heard, limit);
  get_up();
}

void Doorbell::wake_engine() {
  bell_->rings.fetch_add(1);
  futex_wake_all(bell_->rings, FutexScope::kHost);
}

}  // namespace sirtaki
