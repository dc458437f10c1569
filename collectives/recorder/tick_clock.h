// A clock that is read in half the time of Clock: the processor's counter, where the kernel itself relies on it. Its
// readings are converted later.
#pragma once

#include <cstdint>

namespace sirtaki {

class TickClock {
 public:
  TickClock();

  std::uint64_t read() const { return uses_counter_ ? counter() : static_cast<std::uint64_t>(nanoseconds()); }

  // Converts readings to ns of CLOCK_MONOTONIC. Made for some readings of the last seconds or minutes: it assumes that
  // the counter kept the rate that it has had on average.
  class Conversion {
   public:
    std::int64_t operator()(std::uint64_t ticks) const {
      const auto ago = static_cast<double>(static_cast<std::int64_t>(ticks_ - ticks));
      return time_ - static_cast<std::int64_t>(ago * rate_);
    }

   private:
    friend class TickClock;
    std::uint64_t ticks_ = 0;
    std::int64_t time_ = 0;
    double rate_ = 1;  // nanoseconds of a tick
  };
  Conversion conversion() const;

  static std::int64_t nanoseconds();

 private:
  struct Pair {
    std::uint64_t ticks = 0;
    std::int64_t time = 0;
  };
#if defined(__x86_64__)
  static std::uint64_t counter() { return __builtin_ia32_rdtsc(); }
#else
  static std::uint64_t counter() { return 0; }
#endif
  Pair pair() const;

  bool uses_counter_;
  Pair first_;
};

}  // namespace sirtaki
