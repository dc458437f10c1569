// Arithmetic on elements, against plain formulas.
#include "kernels.h"

#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "half.h"

namespace sirtaki::testing {
namespace {

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, std::vector<T> a, const std::vector<T>& b) {
  reduce(dtype, op, a.data(), b.data(), static_cast<std::int64_t>(a.size()));
  return a;
}

void all_bits_of_float16_round_trip() {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const auto value = static_cast<float>(half);
    if (std::isnan(value)) {
      check(std::isnan(static_cast<float>(Float16(value))), "NaN stays NaN");
    } else {
      check_equal(Float16(value).bits, half.bits, "float16 there and back");
    }
    Bfloat16 brain;
    brain.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(brain);
    if (!std::isnan(wide)) check_equal(Bfloat16(wide).bits, brain.bits, "bfloat16 there and back");
  }
}

void halves_round_to_nearest_even() {
  check_equal(Float16(2049.0F).bits, Float16(2048.0F).bits, "tie to even, down");
  check_equal(Float16(2051.0F).bits, Float16(2052.0F).bits, "tie to even, up");
  check_equal(Float16(65519.0F).bits, 0x7bff, "below the largest");
  check_equal(Float16(65520.0F).bits, 0x7c00, "overflow is infinity");
  check_equal(Float16(0x1p-25F).bits, 0, "half of the smallest, tie to even");
  check_equal(Float16(0x1.8p-25F).bits, 1, "smallest subnormal");
  check_equal(Bfloat16(1.00390625F).bits, 0x3f80, "bfloat16 tie to even");
  check(std::isnan(static_cast<float>(Bfloat16(std::numeric_limits<float>::quiet_NaN()))), "NaN");
}

void ops() {
  using Floats = std::vector<float>;
  check(reduced<float>(DType::kFloat32, ReduceOp::kSum, {1, 2}, {3, 4}) == Floats{4, 6}, "sum");
  check(reduced<float>(DType::kFloat32, ReduceOp::kMin, {1, 5}, {3, 4}) == Floats{1, 4}, "min");
  check(reduced<float>(DType::kFloat32, ReduceOp::kMax, {1, 5}, {3, 4}) == Floats{3, 5}, "max");
  check(reduced<float>(DType::kFloat32, ReduceOp::kProduct, {2, 5}, {3, 4}) == Floats{6, 20}, "product");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats kept = reduced<float>(DType::kFloat32, ReduceOp::kMax, {nan, 1}, {1, nan});
  check(std::isnan(kept[0]) && std::isnan(kept[1]), "max keeps NaN from either side");
  using Bytes8 = std::vector<std::int8_t>;
  check(reduced<std::int8_t>(DType::kInt8, ReduceOp::kSum, {100}, {100}) == Bytes8{-56}, "integers wrap");
  using Bools = std::vector<std::uint8_t>;
  check(reduced<std::uint8_t>(DType::kBool, ReduceOp::kSum, {0, 1, 1}, {0, 0, 1}) == Bools{0, 1, 1}, "bool sum is or");
  check(reduced<std::uint8_t>(DType::kBool, ReduceOp::kProduct, {0, 1, 1}, {0, 0, 1}) == Bools{0, 0, 1}, "and");
}

template <class To, class From>
To converted(DType to, DType from, From value, double factor) {
  To result;
  convert(to, &result, from, &value, 1, factor);
  return result;
}

void scaling() {
  check_equal(converted<std::int32_t>(DType::kInt32, DType::kInt64, std::int64_t{-7}, 0.5), -3,
              "truncates toward zero");
  check_equal(converted<std::int8_t>(DType::kInt8, DType::kInt64, std::int64_t{300}, 1.0), 44, "a plain cast wraps");
  check_equal(converted<std::uint8_t>(DType::kUint8, DType::kInt64, std::int64_t{300}, 2.0), 255,
              "a scaled one clamps");
  check_equal(converted<std::int64_t>(DType::kInt64, DType::kInt64, std::numeric_limits<std::int64_t>::max(), 1.0),
              std::numeric_limits<std::int64_t>::max(), "a factor of one is exact");
  check_equal(converted<double>(DType::kFloat64, DType::kFloat64, 1.0, 1.0 / 3), 1.0 / 3, "float64 in float64");
  const Float16 large(60000.0F);
  const auto wire = converted<float>(DType::kFloat32, DType::kFloat16, large, 1.0) * 2;
  check_equal(converted<Float16>(DType::kFloat16, DType::kFloat32, wire, 0.5).bits, large.bits, "mean of 60000, 60000");
}

void wires() {
  check(wire_dtype({DType::kFloat16, ReduceOp::kSum, 1, 1}) == DType::kFloat32, "float16");
  check(wire_dtype({DType::kInt8, ReduceOp::kSum, 1, 0.5}) == DType::kInt64, "averages of small integers");
  check(wire_dtype({DType::kInt8, ReduceOp::kSum, 1, 1}) == DType::kInt8, "sums of small integers");
  check(wire_dtype({DType::kUint64, ReduceOp::kSum, 1, 0.5}) == DType::kUint64, "uint64");
  check(wire_dtype({DType::kFloat64, ReduceOp::kSum, 1, 0.5}) == DType::kFloat64, "float64");
}

void identities() {
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
      check(std::equal(value, value + size_of(dtype), before), "identity of " + std::string(name_of(dtype)));
    }
  }
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  all_bits_of_float16_round_trip();
  halves_round_to_nearest_even();
  ops();
  scaling();
  wires();
  identities();
}
