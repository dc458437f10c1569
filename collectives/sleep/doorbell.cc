#include "sleep/doorbell.h"

namespace sirtaki {

void Doorbell::ring(bool urgent) {
  bell_->rings.fetch_add(1);
  const auto rest = static_cast<SleepState>(bell_->state.load());
  if (rest == SleepState::kHelperAsleep) {
    bell_->helper.fetch_add(1);
    futex_wake_all(bell_->helper, FutexScope::kHost);
  } else if (rest == SleepState::kAsleep || (rest == SleepState::kNapping && urgent)) {
    futex_wake_all(bell_->rings, FutexScope::kHost);
  }
}

std::uint32_t Doorbell::prepare_sleep(SleepState how) {
  const std::uint32_t seen = (how == SleepState::kHelperAsleep ? bell_->helper : bell_->rings).load();
  bell_->state.store(static_cast<std::uint32_t>(how));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return seen;
}

WakeReason Doorbell::sleep(SleepState how, std::uint32_t seen, std::chrono::nanoseconds limit) {
  return futex_wait(how == SleepState::kHelperAsleep ? bell_->helper : bell_->rings, seen, limit, FutexScope::kHost);
}

void Doorbell::nap(std::chrono::nanoseconds limit) {
  const std::uint32_t seen = prepare_sleep(SleepState::kNapping);
  sleep(SleepState::kNapping, seen, limit);
  set_awake();
}

void Doorbell::wake_engine() {
  bell_->rings.fetch_add(1);
  futex_wake_all(bell_->rings, FutexScope::kHost);
}

}  // namespace sirtaki
