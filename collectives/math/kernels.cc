#include "math/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "math/dtype_dispatch.h"
#include "math/float16_vectors.h"

namespace sirtaki {
namespace {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// The type to calculate in: 16-bit floats in float, integers unsigned so that overflow wraps instead of being
// undefined.
template <class T>
auto widen(T value) {
  if constexpr (kIsHalf<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

// Each element depends on no other, even if `out` is an input. So compilers need not check whether the arrays overlap.
template <class T, class Op>
struct ReduceLoop {
  T* out;
  const T* a;
  const T* b;
  std::int64_t count;

  [[gnu::always_inline]] void operator()() const {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(Op()(widen(a[i]), widen(b[i])));
  }
};

struct Sum {
  template <class T>
  auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class T>
  auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// A NaN on either side stays a NaN, as in torch.
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return (b < a || b != b) ? b : a;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return (a < b || b != b) ? b : a;
  }
};

template <class T>
void reduce_typed(ReduceOp op, T* out, const T* a, const T* b, std::int64_t count, VectorLevel level) {
  switch (op) {
    case ReduceOp::kMin:
      return run_at(level, ReduceLoop<T, Min>{out, a, b, count});
    case ReduceOp::kMax:
      return run_at(level, ReduceLoop<T, Max>{out, a, b, count});
    case ReduceOp::kProduct:
      return run_at(level, ReduceLoop<T, Product>{out, a, b, count});
    default:
      return run_at(level, ReduceLoop<T, Sum>{out, a, b, count});
  }
}

ReduceOp on_bool(ReduceOp op) {
  return op == ReduceOp::kMin || op == ReduceOp::kProduct ? ReduceOp::kMin : ReduceOp::kMax;
}

// Float to integer conversion out of range is undefined in C++; clamp. NaN becomes 0.
template <class To>
To truncate(double value) {
  constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
  constexpr double high = static_cast<double>(std::numeric_limits<To>::max());
  if (value != value) return 0;
  if (value <= low) return std::numeric_limits<To>::min();
  if (value >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

// Values that float holds exactly are scaled in float: vectors then hold twice as many.
template <class To, class From>
inline constexpr bool kScaleInFloat =
    (kIsHalf<From> || std::is_same_v<From, float>) && (kIsHalf<To> || std::is_same_v<To, float>);

template <class To, class From>
To convert_one(From value, double factor) {
  if constexpr (kScaleInFloat<To, From>) {
    return static_cast<To>(static_cast<float>(value) * static_cast<float>(factor));
  } else {
    const double scaled = static_cast<double>(widen(value)) * factor;
    if constexpr (std::is_integral_v<To>) {
      return truncate<To>(scaled);
    } else if constexpr (kIsHalf<To>) {
      return static_cast<To>(static_cast<float>(scaled));
    } else {
      return static_cast<To>(scaled);
    }
  }
}

template <class To, class From>
To cast_one(From value) {
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    return static_cast<To>(value);
  } else {
    return convert_one<To>(value, 1.0);
  }
}

template <class To, class From>
struct CastLoop {
  To* out;
  const From* in;
  std::int64_t count;

  [[gnu::always_inline]] void operator()() const {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = cast_one<To>(in[i]);
  }
};

template <class To>
To clamped(auto value) {
  if (std::in_range<To>(value)) return static_cast<To>(value);
  return value < 0 ? std::numeric_limits<To>::min() : std::numeric_limits<To>::max();
}

template <class To, class From>
To scaled_integer(From value, Scale scale) {
  if (scale.factor != 1.0) {
    return truncate<To>(static_cast<double>(value) * scale.factor / static_cast<double>(scale.divisor));
  }
  using Wide = std::conditional_t<std::is_signed_v<From>, std::int64_t, std::uint64_t>;
  return clamped<To>(static_cast<Wide>(value) / static_cast<Wide>(scale.divisor));
}

// The result of a finite number is finite.
template <class T>
struct BoundedScaleLoop {
  T* out;
  const T* in;
  std::int64_t count;
  T factor;

  [[gnu::always_inline]] void operator()() const {
    constexpr T most = std::numeric_limits<T>::max();
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T scaled = in[i] * factor;
      const T bounded = scaled > most ? most : (scaled < -most ? -most : scaled);
      out[i] = std::abs(in[i]) <= most ? bounded : scaled;
    }
  }
};

// An infinity or a NaN has all bits of the exponent set. Adding the exponent's lowest bit then carries into the sign.
template <class T>
struct AddAndScaleLoop {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static constexpr Word kSign = Word{1} << (sizeof(T) * 8 - 1);
  static constexpr Word kLowestOfExponent = Word{1} << (std::numeric_limits<T>::digits - 1);

  T* out;
  const T* a;
  const T* b;
  std::int64_t count;
  T factor;
  bool* all_finite;

  [[gnu::always_inline]] void operator()() const {
    Word found = 0;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) {
      const T sum = a[i] + b[i];
      out[i] = sum * factor;
      found |= (std::bit_cast<Word>(sum) & ~kSign) + kLowestOfExponent;
    }
    *all_finite = (found & kSign) == 0;
  }
};

template <class To, class From>
struct ScaleLoop {
  To* out;
  const From* in;
  std::int64_t count;
  double factor;

  [[gnu::always_inline]] void operator()() const {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert_one<To>(in[i], factor);
  }
};

template <bool often, class Loop>
void run_often(VectorLevel level, const Loop& loop) {
  if constexpr (often) {
    run_at(level, loop);
  } else {
    loop();
  }
}

// Conversions of every training step are compiled for all vector levels. The many others are rare.
template <class To, class From>
void convert_typed(To* out, const From* in, std::int64_t count, Scale scale, VectorLevel level) {
  if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    if (!scale.is_one()) {
      std::transform(in, in + count, out, [scale](From value) { return scaled_integer<To>(value, scale); });
      return;
    }
  } else if constexpr (std::is_same_v<To, From> && std::is_floating_point_v<To>) {
    if (scale.keeps_finite()) {
      return run_at(level, BoundedScaleLoop<To>{out, in, count, static_cast<To>(scale.quotient())});
    }
  }
  const double factor = scale.quotient();
  constexpr bool often = kScaleInFloat<To, From> || (std::is_same_v<To, double> && std::is_same_v<From, double>);
  std::int64_t done = 0;
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, Float16>) {
    if (level != VectorLevel::kPortable) done = widen_by_vectors(out, in, count, static_cast<float>(factor));
  } else if constexpr (std::is_same_v<To, Float16> && std::is_same_v<From, float>) {
    if (level != VectorLevel::kPortable) done = narrow_by_vectors(out, in, count, static_cast<float>(factor));
  }
  if (factor == 1.0) {
    const CastLoop<To, From> loop{out + done, in + done, count - done};
    run_often<often>(level, loop);
  } else {
    const ScaleLoop<To, From> loop{out + done, in + done, count - done, factor};
    run_often<often>(level, loop);
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, void* accumulator, const void* in, std::int64_t count) {
  reduce_to(dtype, op, accumulator, accumulator, in, count);
}

void reduce_to(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::int64_t count,
               VectorLevel level) {
  if (dtype == DType::kBool) op = on_bool(op);
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    reduce_typed(op, static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), count, level);
  });
}

void convert(DType to, void* out, DType from, const void* in, std::int64_t count, Scale scale, VectorLevel level) {
  if (count == 0) return;  // the addresses may be null
  if (to == from && scale.is_one()) {
    if (out != in) std::memmove(out, in, static_cast<std::size_t>(count) * size_of(to));
    return;
  }
  with_type(to, [&]<class To>(std::type_identity<To>) {
    with_type(from, [&]<class From>(std::type_identity<From>) {
      convert_typed(static_cast<To*>(out), static_cast<const From*>(in), count, scale, level);
    });
  });
}

bool add_and_scale(DType dtype, void* out, const void* a, const void* b, std::int64_t count, double factor,
                   VectorLevel level) {
  bool all_finite = true;
  const auto run = [&]<class T>(std::type_identity<T>) {
    run_at(level, AddAndScaleLoop<T>{static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b), count,
                                     static_cast<T>(factor), &all_finite});
  };
  if (dtype == DType::kFloat32) {
    run(std::type_identity<float>{});
  } else {
    run(std::type_identity<double>{});
  }
  return all_finite;
}

DType wire_dtype(const Reduction& reduction) {
  const DType dtype = reduction.dtype;
  if (dtype == DType::kFloat16 || dtype == DType::kBfloat16) return DType::kFloat32;
  if (!is_integer(dtype) || (reduction.postscale == 1.0 && reduction.divisor == 1)) return dtype;
  return dtype == DType::kUint64 ? DType::kUint64 : DType::kInt64;
}

void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count) {
  if (dtype == DType::kBool) {
    std::memset(out, on_bool(op) == ReduceOp::kMin ? 1 : 0, static_cast<std::size_t>(count));
    return;
  }
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    using Wide = decltype(widen(T()));
    constexpr bool floating = std::is_floating_point_v<Wide>;
    Wide value = static_cast<Wide>(-Wide{});  // -0, since 0 + -0 is 0: another rank's -0 would be lost
    if (op == ReduceOp::kProduct) value = 1;
    if (op == ReduceOp::kMin)
      value = floating ? std::numeric_limits<Wide>::infinity() : std::numeric_limits<Wide>::max();
    if (op == ReduceOp::kMax)
      value = floating ? -std::numeric_limits<Wide>::infinity() : std::numeric_limits<Wide>::min();
    std::fill_n(static_cast<T*>(out), count, static_cast<T>(value));
  });
}

Dots dots(DType dtype, const void* a, const void* b, std::int64_t count) {
  Dots result;
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    const T* x = static_cast<const T*>(a);
    const T* y = static_cast<const T*>(b);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto p = static_cast<double>(widen(x[i]));
      const auto q = static_cast<double>(widen(y[i]));
      result.aa += p * p;
      result.ab += p * q;
      result.bb += q * q;
    }
  });
  return result;
}

void combine(DType dtype, void* a, double fa, const void* b, double fb, std::int64_t count) {
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {
      using Wide = decltype(widen(T()));
      T* x = static_cast<T*>(a);
      const T* y = static_cast<const T*>(b);
      for (std::int64_t i = 0; i < count; ++i) {
        x[i] = static_cast<T>(static_cast<Wide>(fa) * widen(x[i]) + static_cast<Wide>(fb) * widen(y[i]));
      }
    }
  });
}

}  // namespace sirtaki
