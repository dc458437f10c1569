// Arithmetic on elements, against plain formulas.
#include "math/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "math/dtype_dispatch.h"
#include "math/half.h"

namespace sirtaki::testing {
namespace {

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, std::vector<T> a, const std::vector<T>& b) {
  reduce(dtype, op, a.data(), b.data(), static_cast<std::int64_t>(a.size()));
  return a;
}

TEST_CASE("Every 16-bit float survives the conversion to float32 and back") {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value)) {
      CHECK_MESSAGE(std::isnan(static_cast<float>(Float16(value))), "NaN stays NaN");
    } else {
      CHECK_MESSAGE(Float16(value).bits == half.bits, "float16 there and back");
    }
    Bfloat16 brain;
    brain.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(brain);
    if (!std::isnan(wide)) CHECK_MESSAGE(Bfloat16(wide).bits == brain.bits, "bfloat16 there and back");
  }
}

TEST_CASE("16-bit floats round to nearest, ties to even") {
  CHECK_MESSAGE(Float16(2049.0F).bits == Float16(2048.0F).bits, "tie to even, down");
  CHECK_MESSAGE(Float16(2051.0F).bits == Float16(2052.0F).bits, "tie to even, up");
  CHECK_MESSAGE(Float16(65519.0F).bits == 0x7bff, "below the largest");
  CHECK_MESSAGE(Float16(65520.0F).bits == 0x7c00, "overflow is infinity");
  CHECK_MESSAGE(Float16(0x1p-25F).bits == 0, "half of the smallest, tie to even");
  CHECK_MESSAGE(Float16(0x1.8p-25F).bits == 1, "smallest subnormal");
  CHECK_MESSAGE(Bfloat16(1.00390625F).bits == 0x3f80, "bfloat16 tie to even");
  CHECK_MESSAGE(std::isnan(static_cast<float>(Bfloat16(std::numeric_limits<float>::quiet_NaN()))), "NaN");
}

TEST_CASE("Each reduction computes its formula") {
  using Floats = std::vector<float>;
  CHECK(reduced<float>(DType::kFloat32, ReduceOp::kSum, {1, 2}, {3, 4}) == Floats{4, 6});
  CHECK(reduced<float>(DType::kFloat32, ReduceOp::kMin, {1, 5}, {3, 4}) == Floats{1, 4});
  CHECK(reduced<float>(DType::kFloat32, ReduceOp::kMax, {1, 5}, {3, 4}) == Floats{3, 5});
  CHECK(reduced<float>(DType::kFloat32, ReduceOp::kProduct, {2, 5}, {3, 4}) == Floats{6, 20});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats kept = reduced<float>(DType::kFloat32, ReduceOp::kMax, {nan, 1}, {1, nan});
  CHECK_MESSAGE(std::isnan(kept[0]), "max keeps NaN from either side");
  CHECK_MESSAGE(std::isnan(kept[1]), "max keeps NaN from either side");
  using Bytes8 = std::vector<std::int8_t>;
  CHECK_MESSAGE(reduced<std::int8_t>(DType::kInt8, ReduceOp::kSum, {100}, {100}) == Bytes8{-56}, "integers wrap");
  using Bools = std::vector<std::uint8_t>;
  CHECK_MESSAGE((reduced<std::uint8_t>(DType::kBool, ReduceOp::kSum, {0, 1, 1}, {0, 0, 1}) == Bools{0, 1, 1}),
                "bool sum is or");
  CHECK(reduced<std::uint8_t>(DType::kBool, ReduceOp::kProduct, {0, 1, 1}, {0, 0, 1}) == Bools{0, 0, 1});
}

template <class To, class From>
To converted(DType to, DType from, From value, Scale scale) {
  To result;
  convert(to, &result, from, &value, 1, scale);
  return result;
}

TEST_CASE("Conversions truncate, wrap, clamp and scale") {
  CHECK_MESSAGE(converted<std::int32_t>(DType::kInt32, DType::kInt64, std::int64_t{-7}, 0.5) == -3,
                "truncates toward zero");
  CHECK_MESSAGE(converted<std::int8_t>(DType::kInt8, DType::kInt64, std::int64_t{300}, 1.0) == 44,
                "a plain cast wraps");
  CHECK_MESSAGE(converted<std::uint8_t>(DType::kUint8, DType::kInt64, std::int64_t{300}, 2.0) == 255,
                "a scaled one clamps");
  CHECK_MESSAGE(converted<std::int8_t>(DType::kInt8, DType::kInt64, std::int64_t{-49 * 128}, {1.0, 49}) == -128,
                "49 times -128 by 49");
  CHECK_MESSAGE(converted<std::int64_t>(DType::kInt64, DType::kInt64, (std::int64_t{1} << 53) + 1, {1.0, 1}) ==
                    (std::int64_t{1} << 53) + 1,
                "not through float64");
  CHECK_MESSAGE(converted<std::uint8_t>(DType::kUint8, DType::kUint64, std::uint64_t{301}, {2.0, 3}) == 200,
                "a factor and a divisor are truncated together");
  CHECK_MESSAGE(converted<std::int64_t>(DType::kInt64, DType::kInt64, std::numeric_limits<std::int64_t>::max(), 1.0) ==
                    std::numeric_limits<std::int64_t>::max(),
                "a factor of one is exact");
  CHECK_MESSAGE(converted<double>(DType::kFloat64, DType::kFloat64, 1.0, 1.0 / 3) == 1.0 / 3, "float64 in float64");
  const Float16 large(60000.0F);
  const auto wire = converted<float>(DType::kFloat32, DType::kFloat16, large, 1.0) * 2;
  CHECK_MESSAGE(converted<Float16>(DType::kFloat16, DType::kFloat32, wire, 0.5).bits == large.bits,
                "mean of 60000, 60000");
}

// A sum of halved numbers is scaled to the largest number at most; infinities stay what they are.
template <class T>
void scaled_sums_stay_finite(DType dtype) {
  constexpr T most = std::numeric_limits<T>::max();
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T little_too_much = std::nextafter(most / 4 * 3, infinity);
  CHECK_MESSAGE(converted<T>(dtype, dtype, little_too_much, {4.0, 3}) == most, "rounded up, and still finite");
  CHECK_MESSAGE(converted<T>(dtype, dtype, -little_too_much, {4.0, 3}) == -most, "the same below zero");
  CHECK_MESSAGE(converted<T>(dtype, dtype, infinity, {4.0, 3}) == infinity, "an infinity");
  CHECK_MESSAGE(std::isnan(converted<T>(dtype, dtype, std::numeric_limits<T>::quiet_NaN(), {4.0, 3})), "NaN");
  CHECK_MESSAGE(converted<T>(dtype, dtype, most, {16.0, 3}) == infinity, "a factor of the user's may leave the range");
}

template <class T>
void sums_are_looked_at_while_they_are_scaled(DType dtype) {
  constexpr T most = std::numeric_limits<T>::max();
  for (const VectorLevel level : vector_levels()) {
    for (const std::int64_t count : {1, 7, 64, 333}) {
      const auto length = static_cast<std::size_t>(count);
      std::vector<T> a(length, most / 4), b(length, most / 2), out(length);
      CHECK_MESSAGE(add_and_scale(dtype, out.data(), a.data(), b.data(), count, 2.0, level), "all sums are finite");
      CHECK_MESSAGE(std::isinf(out.front()), "the factor is the caller's affair");
      for (const T bad : {most, std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
        a.back() = bad;
        CHECK_MESSAGE(!add_and_scale(dtype, out.data(), a.data(), b.data(), count, 0.5, level),
                      "one sum is not finite");
      }
      a.back() = most / 4;
      CHECK_MESSAGE(add_and_scale(dtype, a.data(), a.data(), b.data(), count, 0.5, level), "in place");
      CHECK_MESSAGE(a.back() == (most / 4 + most / 2) / 2, "added and scaled");
    }
  }
}

TEST_CASE("The dtype of partial results follows from dtype, op and factors") {
  CHECK(wire_dtype({DType::kFloat16, ReduceOp::kSum, 1, 1}) == DType::kFloat32);
  CHECK_MESSAGE(wire_dtype({DType::kInt8, ReduceOp::kSum, 1, 0.5}) == DType::kInt64, "scaled small integers");
  CHECK_MESSAGE(wire_dtype({DType::kInt8, ReduceOp::kSum, 1, 1, 3}) == DType::kInt64, "averages of small integers");
  CHECK_MESSAGE(wire_dtype({DType::kInt8, ReduceOp::kSum, 1, 1}) == DType::kInt8, "sums of small integers");
  CHECK(wire_dtype({DType::kUint64, ReduceOp::kSum, 1, 0.5}) == DType::kUint64);
  CHECK(wire_dtype({DType::kFloat64, ReduceOp::kSum, 1, 0.5}) == DType::kFloat64);
}

TEST_CASE("The identity of each op changes no element") {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto dtype = static_cast<DType>(d);
      alignas(8) std::byte identity[8];
      alignas(8) std::byte value[8];
      alignas(8) std::byte before[8];
      const std::int64_t one = 1;
      fill_identity(dtype, op, identity, 1);
      convert(dtype, value, DType::kInt64, &one, 1, 1.0);
      std::copy(value, value + 8, before);
      reduce(dtype, op, value, identity, 1);
      CHECK_MESSAGE(std::equal(value, value + size_of(dtype), before), "identity of ", std::string(name_of(dtype)));
      if (is_integer(dtype) || dtype == DType::kBool || op != ReduceOp::kSum) continue;
      const double zero = -0.0;
      convert(dtype, value, DType::kFloat64, &zero, 1, 1.0);
      std::copy(value, value + 8, before);
      reduce(dtype, op, value, identity, 1);
      CHECK_MESSAGE(std::equal(value, value + size_of(dtype), before), "-0 stays one");
    }
  }
}

// Every bit pattern of a half comes up; NaNs as well, but only in one operand: which of two is kept is not defined.
std::vector<std::byte> random_elements(DType dtype, std::int64_t count, std::uint32_t seed, bool with_nans) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    T* elements = reinterpret_cast<T*>(bytes.data());
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (!std::is_integral_v<T>) {
        const auto value = static_cast<double>(static_cast<float>(elements[i]));
        if (!with_nans && std::isnan(value)) elements[i] = static_cast<T>(1.5F);
      } else if (dtype == DType::kBool) {
        elements[i] &= 1;
      }
    }
  });
  return bytes;
}

constexpr std::int64_t kMost = 1000;
constexpr std::array<std::int64_t, 8> kCounts = {0, 1, 7, 8, 31, 64, 333, kMost};

// From an odd element on, so that vectors are not aligned.
void levels_reduce_alike(VectorLevel level, DType dtype, ReduceOp op) {
  const std::vector<std::byte> a = random_elements(dtype, kMost + 1, 1, true);
  const std::vector<std::byte> b = random_elements(dtype, kMost + 1, 2, false);
  const std::size_t odd = size_of(dtype);
  for (const std::int64_t count : kCounts) {
    std::vector<std::byte> expected(a.size()), got(a.size()), in_place = a, in_other_place = b;
    reduce_to(dtype, op, expected.data(), a.data() + odd, b.data() + odd, count, VectorLevel::kPortable);
    reduce_to(dtype, op, got.data(), a.data() + odd, b.data() + odd, count, level);
    reduce_to(dtype, op, in_place.data() + odd, in_place.data() + odd, b.data() + odd, count, level);
    reduce_to(dtype, op, in_other_place.data() + odd, a.data() + odd, in_other_place.data() + odd, count, level);
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    const auto same = [&](const std::byte* result) { return std::equal(result, result + bytes, expected.data()); };
    const std::string what = std::string(name_of(op)) + " of " + std::to_string(count) + " " +
                             std::string(name_of(dtype)) + " at level " + std::to_string(static_cast<int>(level));
    CHECK_MESSAGE(same(got.data()), what);
    CHECK_MESSAGE(same(in_place.data() + odd), what, ", in place");
    CHECK_MESSAGE(same(in_other_place.data() + odd), what, ", in the second's place");
  }
}

void levels_convert_alike(VectorLevel level, DType to, DType from, Scale scale) {
  const std::vector<std::byte> in = random_elements(from, kMost + 1, 3, true);
  for (const std::int64_t count : kCounts) {
    std::vector<std::byte> expected(static_cast<std::size_t>(count) * size_of(to)), got(expected.size());
    convert(to, expected.data(), from, in.data() + size_of(from), count, scale, VectorLevel::kPortable);
    convert(to, got.data(), from, in.data() + size_of(from), count, scale, level);
    CHECK_MESSAGE(got == expected, std::string(name_of(from)), " to ", std::string(name_of(to)), ", ", count, " times ",
                  scale.factor, " at level ", static_cast<int>(level));
  }
}

TEST_CASE("Every vector level gives the same bits") {
  for (const VectorLevel level : vector_levels()) {
    for (int d = 0; d < kDTypeCount; ++d) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        levels_reduce_alike(level, static_cast<DType>(d), op);
      }
      for (int e = 0; e < kDTypeCount; ++e) {
        for (const Scale& scale : {Scale(1.0), Scale(1.0 / 3), Scale(4.0, 3)}) {
          const bool truncates = is_integer(static_cast<DType>(d)) && !is_integer(static_cast<DType>(e));
          if (truncates && scale.is_one()) continue;  // nobody does it
          levels_convert_alike(level, static_cast<DType>(d), static_cast<DType>(e), scale);
        }
      }
    }
  }
}

// The processor's conversion, element by element, against half.h.
TEST_CASE("The vectorized float16 conversion equals half.h") {
  std::vector<Float16> halves(65536);
  for (std::size_t bits = 0; bits < halves.size(); ++bits) halves[bits].bits = static_cast<std::uint16_t>(bits);
  std::vector<float> wide(halves.size());
  convert(DType::kFloat32, wide.data(), DType::kFloat16, halves.data(), 65536, 1.0);
  for (std::size_t bits = 0; bits < halves.size(); ++bits) {
    CHECK_MESSAGE(
        std::bit_cast<std::uint32_t>(wide[bits]) == std::bit_cast<std::uint32_t>(static_cast<float>(halves[bits])),
        "float16 ", bits, " to float32");
  }
  std::vector<float> words(65536);
  for (std::uint32_t low : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x1fffU, 0x2000U, 0x3000U, 0xffffU}) {
    for (std::uint32_t high = 0; high < 65536; ++high) words[high] = std::bit_cast<float>(high << 16 | low);
    convert(DType::kFloat16, halves.data(), DType::kFloat32, words.data(), 65536, 1.0);
    for (std::uint32_t high = 0; high < 65536; ++high) {
      CHECK_MESSAGE(halves[high].bits == Float16(words[high]).bits, "float32 ", high << 16 | low);
    }
  }
}

TEST_CASE("Scaled sums stay finite") {
  scaled_sums_stay_finite<float>(DType::kFloat32);
  scaled_sums_stay_finite<double>(DType::kFloat64);
}

TEST_CASE("Sums are checked for infinities while they are scaled") {
  sums_are_looked_at_while_they_are_scaled<float>(DType::kFloat32);
  sums_are_looked_at_while_they_are_scaled<double>(DType::kFloat64);
}

}  // namespace
}  // namespace sirtaki::testing
