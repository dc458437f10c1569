// What a number is multiplied and divided by: a factor of the user's, and the count of an average.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace sirtaki {

struct Scale {
  // A plain factor is a scale.
  Scale(double multiply_by = 1.0, std::int64_t divide_by = 1) : factor(multiply_by), divisor(divide_by) {}  // NOLINT

  bool is_one() const { return factor == 1.0 && divisor == 1; }
  // For floating point.
  double quotient() const { return factor / static_cast<double>(divisor); }
  // A sum that was halved until it fits is at most `divisor / bit_ceil(divisor)` of the largest number, so that the
  // scaled sum is a finite number too. Rounding must not make it infinite.
  bool keeps_finite() const {
    return divisor > 1 && std::abs(factor) <= static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(divisor)));
  }

  double factor;
  std::int64_t divisor;
};

}  // namespace sirtaki
