// Averages of any number of simulated ranks: as one rank adds them up, and as a library or one host after the other
// does.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "math/dtype_dispatch.h"
#include "math/kernels.h"
#include "math/reduce_inputs.h"
#include "plane/reduction_steps.h"

namespace sirtaki::testing {
namespace {

constexpr std::array kSizes = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 31, 49, 64, 100, 127, 128, 255, 256, 299, 300};

// One vector for each rank.
template <class T>
using OfRanks = std::vector<std::vector<T>>;

Reduction average_of(DType dtype, std::size_t ranks) {
  return {.dtype = dtype, .op = ReduceOp::kSum, .divisor = static_cast<std::int64_t>(ranks)};
}

template <class T>
std::vector<const std::byte*> addresses(const OfRanks<T>& in) {
  std::vector<const std::byte*> result;
  for (const auto& each : in) result.push_back(reinterpret_cast<const std::byte*>(each.data()));
  return result;
}

template <class T>
std::vector<T> folded(DType dtype, const OfRanks<T>& in) {
  std::vector<T> out(in[0].size());
  reduce_inputs(average_of(dtype, in.size()), addresses(in), reinterpret_cast<std::byte*>(out.data()), std::ssize(out));
  return out;
}

// By steps_of_library(), with plain sums in the order of the ranks.
template <class T>
std::vector<T> by_library(DType dtype, const OfRanks<T>& in) {
  const ReductionSteps steps = steps_of_library(average_of(dtype, in.size()));
  const auto count = std::ssize(in[0]);
  std::vector<double> sum(in[0].size()), next(in[0].size());  // room for any wire
  convert(steps.wire, sum.data(), dtype, in[0].data(), count, steps.before);
  for (std::size_t r = 1; r < in.size(); ++r) {
    convert(steps.wire, next.data(), dtype, in[r].data(), count, steps.before);
    reduce(steps.wire, steps.combine.op, sum.data(), next.data(), count);
  }
  std::vector<T> out(in[0].size());
  convert(dtype, out.data(), steps.wire, sum.data(), count, steps.after);
  return out;
}

// Ranks on hosts of three: each host's sum by reduce_inputs_to_wire(), then those of the hosts.
template <class T>
std::vector<T> by_hosts(DType dtype, const OfRanks<T>& in) {
  const Reduction reduction = average_of(dtype, in.size());
  const ReductionSteps steps = steps_of_library(reduction);
  const Reduction on_host{.dtype = dtype, .op = ReduceOp::kSum, .divisor = halving(reduction)};
  const std::vector<const std::byte*> all = addresses(in);
  const auto count = std::ssize(in[0]);
  std::vector<double> sum(in[0].size()), next(in[0].size());
  for (std::size_t r = 0; r < all.size(); r += 3) {
    auto* const to = reinterpret_cast<std::byte*>(r == 0 ? sum.data() : next.data());
    const std::size_t ranks = std::min<std::size_t>(3, all.size() - r);
    reduce_inputs_to_wire(on_host, steps.wire, std::span(all).subspan(r, ranks), to, count);
    if (r > 0) reduce(steps.wire, ReduceOp::kSum, sum.data(), next.data(), count);
  }
  std::vector<T> out(in[0].size());
  convert(dtype, out.data(), steps.wire, sum.data(), count, steps.after);
  return out;
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::kUint8;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::kInt8;
}
template <>
constexpr DType dtype_of<std::uint16_t>() {
  return DType::kUint16;
}
template <>
constexpr DType dtype_of<std::int16_t>() {
  return DType::kInt16;
}
template <>
constexpr DType dtype_of<std::uint32_t>() {
  return DType::kUint32;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<std::uint64_t>() {
  return DType::kUint64;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::kInt64;
}

// What exact arithmetic gives, by quotients and remainders, so that nothing can overflow.
template <class T>
T exact(const OfRanks<T>& in, std::size_t i) {
  const auto ranks = static_cast<std::int64_t>(in.size());
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  Wide quotients = 0;
  std::int64_t remainders = 0;
  for (const auto& each : in) {
    quotients += static_cast<Wide>(each[i]) / static_cast<Wide>(ranks);
    remainders += static_cast<std::int64_t>(static_cast<Wide>(each[i]) % static_cast<Wide>(ranks));
  }
  // quotients * ranks + remainders is the sum. Toward zero: both parts need the same sign.
  quotients += static_cast<Wide>(remainders / ranks);
  remainders %= ranks;
  if (quotients > 0 && remainders < 0) --quotients;
  if constexpr (std::is_signed_v<Wide>) {
    if (quotients < 0 && remainders > 0) ++quotients;
  }
  return static_cast<T>(quotients);
}

template <class T>
OfRanks<T> integers(std::size_t ranks) {
  constexpr T low = std::numeric_limits<T>::min();
  constexpr T high = std::numeric_limits<T>::max();
  std::mt19937_64 random(ranks);
  OfRanks<T> in(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    in[r] = {low, high, r % 2 == 0 ? low : high, static_cast<T>(r % 2 == 0 ? high : high - 1), 1, 0};
    in[r].push_back(static_cast<T>(-1));
    in[r].push_back(static_cast<T>(r == 0 ? 1 : -1));
    for (int i = 0; i < 600; ++i) in[r].push_back(static_cast<T>(random()));
    for (int i = 0; i < 30; ++i) in[r].push_back(static_cast<T>(random() % 7 - 3));
  }
  return in;
}

template <class T>
void averages_of_integers_are_exact() {
  constexpr DType dtype = dtype_of<T>();
  for (const int size : kSizes) {
    const OfRanks<T> in = integers<T>(static_cast<std::size_t>(size));
    const std::string what = std::string(name_of(dtype)) + " of " + std::to_string(size) + " ranks, element ";
    std::vector<std::vector<T>> results = {folded(dtype, in)};
    if (library_has(ReduceOp::kAverage, dtype)) {
      results.push_back(by_library(dtype, in));
      results.push_back(by_hosts(dtype, in));
    }
    for (const std::vector<T>& result : results) {
      for (std::size_t i = 0; i < result.size(); ++i) {
        CHECK_MESSAGE(+result[i] == +exact(in, i), what, i);
      }
    }
  }
}

TEST_CASE("Equal integers average to themselves") {
  for (std::size_t ranks = 1; ranks <= 300; ++ranks) {
    const std::vector<std::int64_t> own = {1,
                                           -1,
                                           (std::int64_t{1} << 53) + 1,
                                           1'700'000'000'000'000'123,
                                           std::numeric_limits<std::int64_t>::min(),
                                           std::numeric_limits<std::int64_t>::max()};
    const OfRanks<std::int64_t> in(ranks, own);
    CHECK_MESSAGE(folded(DType::kInt64, in) == own, "int64 of ", ranks, " ranks");
    const std::vector<std::int8_t> small = {1, -1, 127, -128};
    CHECK(folded(DType::kInt8, OfRanks<std::int8_t>(ranks, small)) == small);
    CHECK_MESSAGE(by_library(DType::kInt8, OfRanks<std::int8_t>(ranks, small)) == small, "int8 by a library");
  }
}

template <class T>
struct Ends;
template <>
struct Ends<float> {
  static constexpr DType dtype = DType::kFloat32;
  static float most() { return std::numeric_limits<float>::max(); }
};
template <>
struct Ends<double> {
  static constexpr DType dtype = DType::kFloat64;
  static double most() { return std::numeric_limits<double>::max(); }
};
template <>
struct Ends<Bfloat16> {
  static constexpr DType dtype = DType::kBfloat16;
  static Bfloat16 most() { return Bfloat16(0x1.fep127F); }
};
template <>
struct Ends<Float16> {
  static constexpr DType dtype = DType::kFloat16;
  static Float16 most() { return Float16(65504.0F); }
};

template <class T>
double number(T value) {
  if constexpr (sizeof(T) == 2)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

template <class T>
T of_number(double value) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

// Close enough for some hundred roundings in float32.
bool is_near(double got, double right) { return std::abs(got / right - 1) < 5e-5; }

// In this order: the largest number of all, the same below zero, as many of each (and one left over), all but one of
// the largest, an infinity, a NaN, two infinities of different sign, ordinary numbers, -0.
template <class T>
std::vector<double> special(std::size_t rank, std::size_t ranks) {
  const double most = number(Ends<T>::most());
  const double infinity = std::numeric_limits<double>::infinity();
  const bool first = rank == 0;
  return {most,
          -most,
          rank % 2 == 0 ? most : -most,
          first ? -most / 2 : most,
          first ? infinity : most,
          rank + 1 == ranks ? std::nan("") : most,
          first ? infinity : (rank == 1 ? -infinity : 1.0),
          1.5 + static_cast<double>(rank % 2),
          -0.0};
}

template <class T>
void check_special(const std::vector<T>& out, std::size_t ranks, const std::string& what) {
  const double most = number(Ends<T>::most());
  const auto count = static_cast<double>(ranks);
  CHECK_MESSAGE(is_near(number(out[0]), most), what, "the largest number");
  CHECK_MESSAGE(std::isfinite(number(out[0])), what, "the largest number");
  CHECK_MESSAGE(is_near(number(out[1]), -most), what, "the lowest number");
  CHECK_MESSAGE(std::isfinite(number(out[1])), what, "the lowest number");
  const double left_over = ranks % 2 == 0 ? 0.0 : most / count;
  CHECK_MESSAGE(std::abs(number(out[2]) - left_over) <= most / 100, what, "both ends");
  const double all_but_one = most * ((count - 1.5) / count);
  CHECK_MESSAGE(std::abs(number(out[3]) - all_but_one) <= most / 100, what, "all but one");
  CHECK_MESSAGE(number(out[4]) == std::numeric_limits<double>::infinity(), what, "an infinity");
  CHECK_MESSAGE(std::isnan(number(out[5])), what, "NaN");
  if (ranks > 1) CHECK_MESSAGE(std::isnan(number(out[6])), what, "both infinities");
  const double mean = 1.5 + static_cast<double>(ranks / 2) / count;
  CHECK_MESSAGE(std::abs(number(out[7]) - mean) < 0.01, what, "ordinary numbers");
  CHECK_MESSAGE(number(out[8]) == 0, what, "-0");
  CHECK_MESSAGE(std::signbit(number(out[8])), what, "-0");
}

template <class T>
void averages_at_the_ends() {
  for (const int size : kSizes) {
    const auto ranks = static_cast<std::size_t>(size);
    OfRanks<T> in(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (int repeat = 0; repeat < 200; ++repeat) {  // more than a block
        for (const double value : special<T>(r, ranks)) in[r].push_back(of_number<T>(value));
      }
    }
    const std::string what = std::string(name_of(Ends<T>::dtype)) + " of " + std::to_string(size) + " ranks: ";
    const std::size_t period = special<T>(0, 1).size();
    for (const auto& out : {folded(Ends<T>::dtype, in), by_library(Ends<T>::dtype, in), by_hosts(Ends<T>::dtype, in)}) {
      for (std::size_t i = 0; i < out.size(); i += period) {
        check_special(std::vector<T>(out.begin() + static_cast<std::ptrdiff_t>(i),
                                     out.begin() + static_cast<std::ptrdiff_t>(i + period)),
                      ranks, what);
      }
    }
  }
}

// The smallest numbers: exact where one rank adds up; by a library within one of the smallest for each halving.
template <class T>
void averages_of_denormals() {
  constexpr T smallest = std::numeric_limits<T>::denorm_min();
  for (const int size : kSizes) {
    const OfRanks<T> in(static_cast<std::size_t>(size), {smallest, -smallest, 1000 * smallest});
    CHECK_MESSAGE(folded(Ends<T>::dtype, in) == in[0], "denormals of ", size, " ranks");
    const std::vector<T> out = by_library(Ends<T>::dtype, in);
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK_MESSAGE(std::abs(out[i] - in[0][i]) <= static_cast<T>(2 * size) * smallest, "by a library");
    }
  }
}

// The result may be written over an input.
TEST_CASE("Ends in place") {
  const float most = std::numeric_limits<float>::max();
  for (const std::size_t ranks : {2, 3, 4}) {
    for (std::size_t own = 0; own < ranks; ++own) {
      OfRanks<float> in(ranks, std::vector<float>(3000, most));
      reduce_inputs(average_of(DType::kFloat32, ranks), addresses(in), reinterpret_cast<std::byte*>(in[own].data()),
                    3000);
      CHECK_MESSAGE(in[own] == std::vector<float>(3000, most), "in place of rank ", own);
    }
  }
}

// A sum is no average: what leaves the range becomes infinite, and a factor of the user's comes after that.
TEST_CASE("Sums may overflow") {
  const float most = std::numeric_limits<float>::max();
  const OfRanks<float> in(2, std::vector<float>(5, most));
  std::vector<float> out(5);
  reduce_inputs({.dtype = DType::kFloat32, .op = ReduceOp::kSum, .postscale = 0.5}, addresses(in),
                reinterpret_cast<std::byte*>(out.data()), 5);
  CHECK_MESSAGE(out == std::vector<float>(5, std::numeric_limits<float>::infinity()), "a scaled sum");
}

TEST_CASE("Factors around an average") {
  const OfRanks<std::int32_t> in = {{5, -5}, {4, -4}};
  std::vector<std::int32_t> out(2);
  reduce_inputs({.dtype = DType::kInt32, .op = ReduceOp::kSum, .prescale = 2, .postscale = 0.5, .divisor = 2},
                addresses(in), reinterpret_cast<std::byte*>(out.data()), 2);
  CHECK_MESSAGE((out == std::vector<std::int32_t>{4, -4}), "twice, and half of the average, truncated once");
  const OfRanks<float> floats = {{3, 5}, {1, 2}};
  std::vector<float> mean(2);
  reduce_inputs({.dtype = DType::kFloat32, .op = ReduceOp::kSum, .prescale = 2, .postscale = 3, .divisor = 2},
                addresses(floats), reinterpret_cast<std::byte*>(mean.data()), 2);
  CHECK(mean == std::vector<float>{12, 21});
}

TEST_CASE("Averages of integers are exact") {
  averages_of_integers_are_exact<std::uint8_t>();
  averages_of_integers_are_exact<std::int8_t>();
  averages_of_integers_are_exact<std::uint16_t>();
  averages_of_integers_are_exact<std::int16_t>();
  averages_of_integers_are_exact<std::uint32_t>();
  averages_of_integers_are_exact<std::int32_t>();
  averages_of_integers_are_exact<std::uint64_t>();
  averages_of_integers_are_exact<std::int64_t>();
}

TEST_CASE("Averages at the ends of each floating-point dtype are finite") {
  averages_at_the_ends<float>();
  averages_at_the_ends<double>();
  averages_at_the_ends<Bfloat16>();
  averages_at_the_ends<Float16>();
}

TEST_CASE("Averages of denormals") {
  averages_of_denormals<float>();
  averages_of_denormals<double>();
}

}  // namespace
}  // namespace sirtaki::testing
