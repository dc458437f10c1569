#pragma once

#include <chrono>
#include <string>

namespace sirtaki {

using Clock = std::chrono::steady_clock;

// Up to a few milliseconds behind Clock::now(), at a fifth of its cost.
Clock::time_point coarse_now();
inline double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
// Seconds since 1970. For messages only: no decision depends on it.
double wall_clock();
// "2026-01-31 23:59:59" in this process's time zone.
std::string time_of_day(double seconds);

}  // namespace sirtaki
