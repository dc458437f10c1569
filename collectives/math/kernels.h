// Arithmetic on host buffers: the only loops over elements outside a library.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "math/reduction.h"
#include "math/scale.h"
#include "math/vector_level.h"

namespace sirtaki {

// accumulator[i] = accumulator[i] op in[i]; op is kSum, kMin, kMax or kProduct. bool: sum and max are "or", product and
// min are "and". Integers wrap as two's complement. 16-bit floats are rounded at each call: reduce them in
// wire_dtype().
void reduce(DType dtype, ReduceOp op, void* accumulator, const void* in, std::int64_t count);

// out[i] = a[i] op b[i]; out may be a or b.
void reduce_to(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::int64_t count,
               VectorLevel level = best_vector_level());

// out[i] = to(from(in[i]) * scale), in one pass. out == in is allowed if both dtypes have the same size. A scale of 1
// is a cast. Scaled integers are truncated toward zero, and clamped to their range. A factor is applied in float64.
void convert(DType to, void* out, DType from, const void* in, std::int64_t count, Scale scale,
             VectorLevel level = best_vector_level());

// out[i] = (a[i] + b[i]) * factor for float32 or float64; out may be a or b. False if a sum is infinite or NaN.
bool add_and_scale(DType dtype, void* out, const void* a, const void* b, std::int64_t count, double factor,
                   VectorLevel level = best_vector_level());

// The dtype in which elements are sent and summed: float32 for 16-bit floats, 64-bit integers when integers are scaled
// afterwards (so that an average of int8 cannot overflow), otherwise the dtype itself.
DType wire_dtype(const Reduction& reduction);

// Fills `out` with the neutral element of `op`: 0 for sums (-0 for floats), 1 for products, the dtype's largest value
// for min and its smallest for max.
void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count);

// Dot products for Adasum, in float64: {a.a, a.b, b.b}.
struct Dots {
  double aa = 0, ab = 0, bb = 0;
};
Dots dots(DType dtype, const void* a, const void* b, std::int64_t count);

// a[i] = fa * a[i] + fb * b[i], float dtypes only.
void combine(DType dtype, void* a, double fa, const void* b, double fb, std::int64_t count);

}  // namespace sirtaki
