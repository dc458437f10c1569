#include "host/backoff.h"

#include <sched.h>

#include <algorithm>

namespace sirtaki {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr microseconds kSpin{50};
constexpr microseconds kSpinMovingData{300};
// How long to call sched_yield() where ranks share cores. A rank that can go on then runs at once, and that costs less
// than a futex sleep and wake-up.
constexpr microseconds kYielding{100};
constexpr int kFraction = 16;
constexpr nanoseconds kShortestNap{5'000};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

nanoseconds Backoff::waited() {
  const auto now = std::chrono::steady_clock::now();
  if (!std::exchange(waiting_, true)) since_ = now;
  return now - since_;
}

bool Backoff::spin(bool moving_data) {
  const nanoseconds waited = this->waited();
  if (waited >= (moving_data ? kSpinMovingData : kSpin)) return false;
  if (has_core()) {
    relax();
    return true;
  }
  if (waited >= kYielding) return false;
  sched_yield();
  return true;
}

nanoseconds Backoff::nap_length(nanoseconds longest) {
  return std::clamp<nanoseconds>(waited() / kFraction, kShortestNap, longest);
}

void Backoff::pause(Doorbell& doorbell, bool moving_data) {
  if (!spin(moving_data)) doorbell.nap(nap_length());
}

}  // namespace sirtaki
