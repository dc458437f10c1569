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
constexpr nanoseconds kLongestNap{1'000'000};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Backoff::pause(Doorbell& doorbell, bool moving_data) {
  const auto now = std::chrono::steady_clock::now();
  if (!waiting_) {
    waiting_ = true;
    since_ = now;
  }
  const nanoseconds waited = now - since_;
  if (cores_are_free_ && waited < (moving_data ? kSpinMovingData : kSpin)) {
    relax();
    return;
  }
  doorbell.nap(std::clamp<nanoseconds>(waited / kFraction, kShortestNap, kLongestNap));
}

}  // namespace sirtaki
