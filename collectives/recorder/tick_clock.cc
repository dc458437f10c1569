#include "recorder/tick_clock.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"

namespace sirtaki {
namespace {

// The kernel offers this counter as a clock only while it is the same on all cores and never changes its rate: it takes
// one that it has found unstable from the list. In virtual machines it often prefers another clock to it.
[[maybe_unused]] bool kernel_trusts_counter() {
  std::ifstream sources("/sys/devices/system/clocksource/clocksource0/available_clocksource");
  return std::find(std::istream_iterator<std::string>(sources), {}, "tsc") != std::istream_iterator<std::string>();
}

}  // namespace

#if defined(__x86_64__)
TickClock::TickClock() : uses_counter_(kernel_trusts_counter()), first_(pair()) {}
#else  // the function above is not needed
TickClock::TickClock() : uses_counter_(false), first_(pair()) {}
#endif

std::int64_t TickClock::nanoseconds() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// Of several pairs, the one whose two readings were the closest.
TickClock::Pair TickClock::pair() const {
  Pair best;
  std::uint64_t shortest = ~std::uint64_t{0};
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t before = read();
    const std::int64_t time = nanoseconds();
    const std::uint64_t length = read() - before;
    if (length >= shortest) continue;
    shortest = length;
    best = {before + length / 2, time};
  }
  return best;
}

TickClock::Conversion TickClock::conversion() const {
  const Pair now = pair();
  Conversion conversion;
  conversion.ticks_ = now.ticks;
  conversion.time_ = now.time;
  const auto ticks = static_cast<double>(now.ticks - first_.ticks);
  if (uses_counter_ && ticks > 0) conversion.rate_ = static_cast<double>(now.time - first_.time) / ticks;
  return conversion;
}

}  // namespace sirtaki
