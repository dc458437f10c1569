#include "backoff.h"

#include <algorithm>

namespace sirtaki {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr microseconds kSpin{50};
constexpr microseconds kSpinMovingData{300};
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

bool Backoff::spin(bool moving_data) {
  const auto now = std::chrono::steady_clock::now();
  if (!waiting_) {
    waiting_ = true;
    since_ = now;
  }
  if (now - since_ >= (moving_data ? kSpinMovingData : kSpin) || !has_core()) return false;
  relax();
  return true;
}

nanoseconds Backoff::nap_length(nanoseconds longest) const {
  const nanoseconds waited = std::chrono::steady_clock::now() - since_;
  return std::clamp<nanoseconds>(waited / kFraction, kShortestNap, longest);
}

void Backoff::pause(Doorbell& doorbell, bool moving_data) {
  if (!spin(moving_data)) doorbell.nap(nap_length());
}

}  // namespace sirtaki
