// The factor by which the user scales a result, and the divisor of an average.
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
  // Is the scaled sum of finite numbers finite? If elements were halved until the sum cannot overflow, the sum is at
  // most `divisor / bit_ceil(divisor)` of the largest finite number. Rounding must not make the scaled sum infinite.
  bool keeps_finite() const {
    return divisor > 1 && std::abs(factor) <= static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(divisor)));
  }

  double factor;
  std::int64_t divisor;
};

}  // namespace sirtaki
