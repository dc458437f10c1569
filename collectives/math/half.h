// 16-bit floats as storage; arithmetic happens in float32. IEEE 754-2008 binary16 and bfloat16 (the upper half of a
// binary32), both rounded to nearest, ties to even. Free of branches so that compilers can vectorize loops over them.
#pragma once

#include <bit>
#include <cstdint>

namespace sirtaki {

// condition ? yes : no, by masks. Compilers may make a branch of the operator.
inline std::uint32_t pick(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

struct Bfloat16 {
  std::uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (word + 0x7fffU + ((word >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (word >> 16) | 0x40U;  // rounding could carry a NaN into infinity
    bits = static_cast<std::uint16_t>((word & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000U;
    const std::uint32_t magnitude = word & 0x7fffffffU;
    // Normal range: move the exponent's bias from 127 to 15 and round to nearest even at bit 13.
    const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // Below 2^-14: adding 0.5 lets the FPU shift and round the mantissa into place.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
    // A NaN becomes quiet and keeps the upper bits of its payload, as processors do it.
    const std::uint32_t nan = pick(magnitude > 0x7f800000U, 0x7e00U | ((magnitude >> 13) & 0x3ffU), 0x7c00U);
    const std::uint32_t finite = pick(magnitude < 0x38800000U, subnormal, normal);
    const std::uint32_t half = pick(magnitude >= 0x477ff000U, nan, finite);  // 65520 and above round to infinity
    bits = static_cast<std::uint16_t>(sign | half);
  }
  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
    // Multiplying by 2^112 moves the bias back and normalizes subnormals on the way.
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
    const std::uint32_t special =
        magnitude | pick(magnitude > 0x0f800000U, 0x7fc00000U, 0x7f800000U);  // NaNs get quiet
    return std::bit_cast<float>(sign | pick(magnitude >= 0x0f800000U, special, scaled));
  }
};

}  // namespace sirtaki
