#pragma once

#include <chrono>

#include "base/clock.h"

namespace sirtaki {

// When the ranks of a group had all arrived: all had voted for a request, or had entered a plan barrier. For observers
// only: no decision depends on it.
struct Arrival {
  int last = -1;                      // the global rank that came last; -1: unknown
  std::chrono::nanoseconds spread{};  // from the first to the last
  Clock::time_point at{};             // when the last came, by this rank's clock
};

}  // namespace sirtaki
