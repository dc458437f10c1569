#pragma once

#include <chrono>
#include <string>

namespace sirtaki {

using Clock = std::chrono::steady_clock;

// A few milliseconds behind Clock::now(), for a fifth of its price.
Clock::time_point coarse_now();
// Seconds since 1970, for people; nothing is decided by it.
double wall_clock();
// "2026-01-31 23:59:59" in this process's time zone.
std::string time_of_day(double seconds);

}  // namespace sirtaki
