#include "base/clock.h"

#include <array>
#include <cmath>
#include <ctime>

namespace sirtaki {

Clock::time_point coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A time received from another process may have any value.
std::string time_of_day(double seconds) {
  constexpr double kYear10000 = 253402300800.0;
  if (!(seconds >= 0 && seconds < kYear10000)) return "an unknown time";
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%F %T", localtime_r(&whole, &parts));
  return text.data();
}

}  // namespace sirtaki
