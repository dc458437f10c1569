#include "math/average.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "math/dtype_dispatch.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

__extension__ using Int128 = __int128;
static_assert(static_cast<Int128>(-1) < 0);

constexpr std::int64_t kBlock = 256;  // elements

struct Bounds {
  Int128 low;
  Int128 high;
};

Bounds bounds_of(DType dtype) {
  return with_type(dtype, []<class T>(std::type_identity<T>) -> Bounds {
    if constexpr (std::is_integral_v<T>) return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
    throw std::logic_error("not an integer");
  });
}

// Truncated toward zero.
Int128 scaled(Int128 sum, const Reduction& reduction, Bounds bounds) {
  if (reduction.postscale == 1.0) {
    const auto small = static_cast<std::int64_t>(sum);
    if (small == sum) return small / reduction.divisor;  // 64-bit division is several times faster
    return sum / reduction.divisor;
  }
  const double value = static_cast<double>(sum) * reduction.postscale / static_cast<double>(reduction.divisor);
  if (value <= static_cast<double>(bounds.low)) return bounds.low;
  if (value >= static_cast<double>(bounds.high)) return bounds.high;
  return static_cast<Int128>(value);
}

// `W`: a 64-bit integer type that can hold any element.
template <class W>
void average_block(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                   std::byte* out, std::int64_t count) {
  std::array<W, kBlock> wide;
  std::array<Int128, kBlock> sums{};
  const auto length = static_cast<std::size_t>(count);
  for (const std::byte* input : in) {
    convert(wire, wide.data(), reduction.dtype, input + offset, count, reduction.prescale);
    for (std::size_t i = 0; i < length; ++i) sums[i] += wide[i];
  }
  const Bounds bounds = bounds_of(reduction.dtype);
  for (std::size_t i = 0; i < length; ++i) {
    wide[i] = static_cast<W>(std::clamp(scaled(sums[i], reduction, bounds), bounds.low, bounds.high));
  }
  convert(reduction.dtype, out + offset, wire, wide.data(), count, 1.0);
}

// Collects one element of each rank, converted and prescaled as for the sum. False if one is not finite.
template <class T>
bool gather(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
            std::vector<T>& elements) {
  bool finite = true;
  for (std::size_t r = 0; r < in.size(); ++r) {
    convert(wire, &elements[r], reduction.dtype, in[r] + offset, 1, reduction.prescale);
    finite &= std::isfinite(elements[r]);
  }
  return finite;
}

// Halves the elements until their sum cannot overflow. An average lies between the smallest and the largest element (or
// zero), and rounding must not carry it beyond.
template <class T>
double careful_average(const std::vector<T>& elements, std::int64_t divisor) {
  const int halvings = std::bit_width(static_cast<std::uint64_t>(std::max(divisor, std::ssize(elements))));
  double sum = 0, low = 0, high = 0;
  for (const T element : elements) {
    const auto value = static_cast<double>(element);
    sum += std::ldexp(value, -halvings);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  return std::clamp(std::ldexp(sum / static_cast<double>(divisor), halvings), low, high);
}

template <class T>
void average_again_typed(const Reduction& reduction, DType wire, std::span<const std::byte* const> in,
                         std::size_t offset, T* results, std::int64_t count) {
  std::vector<T> elements(in.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t place = offset + static_cast<std::size_t>(i) * size_of(reduction.dtype);
    if (std::isfinite(results[i]) || !gather(reduction, wire, in, place, elements)) continue;
    results[i] = static_cast<T>(careful_average(elements, reduction.divisor) * reduction.postscale);
  }
}

}  // namespace

void average_integers(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                      std::int64_t count) {
  const DType wire = reduction.dtype == DType::kUint64 ? DType::kUint64 : DType::kInt64;
  const auto block = wire == DType::kUint64 ? average_block<std::uint64_t> : average_block<std::int64_t>;
  for (std::int64_t done = 0; done < count; done += kBlock) {
    const std::size_t offset = static_cast<std::size_t>(done) * size_of(reduction.dtype);
    block(reduction, wire, in, offset, out, std::min(kBlock, count - done));
  }
}

void average_again(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                   std::byte* results, std::int64_t count) {
  if (wire == DType::kFloat32) {
    average_again_typed(reduction, wire, in, offset, reinterpret_cast<float*>(results), count);
  } else {
    average_again_typed(reduction, wire, in, offset, reinterpret_cast<double*>(results), count);
  }
}

}  // namespace sirtaki
