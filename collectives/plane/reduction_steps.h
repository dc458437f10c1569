// How a plane treats elements before it sends them, when it combines them, and after it has received them.
#pragma once

#include "math/scale.h"
#include "plane/data_plane.h"

namespace sirtaki {

// Before: convert elements to the wire dtype and multiply by `before`. Then reduce them by `combine`. After: multiply
// by `after` and convert back to the reduction's dtype.
struct ReductionSteps {
  DType wire = DType::kFloat32;
  double before = 1.0;
  Reduction combine = {};  // in the wire dtype
  Scale after = {};
};

// For a plane in which one rank gets an element of all ranks and combines them by reduce_inputs().
ReductionSteps steps_of_fold(const Reduction& reduction);

// For a plane in which a library combines elements, or first each host and then the hosts. `combine` is only the
// operation, without factors. For an average of floats, `before` halves the elements until no sum can overflow. Halving
// is exact, except for numbers so small that they become denormal.
ReductionSteps steps_of_library(const Reduction& reduction);

// The power of two by which steps_of_library() divides elements before they are summed; 1 unless floats are averaged.
std::int64_t halving(const Reduction& reduction);

// Can only reduce_inputs() compute this? True for averages of 64-bit integers: their sum may need more than 64 bits.
bool needs_fold(const Reduction& reduction);

// Does a library for host memory give the results that docs/arithmetic.md requires? False for reductions that need
// reduce_inputs(), for min and max of floats, where MPI may lose a NaN, and for Adasum.
bool library_has(ReduceOp op, DType dtype);

}  // namespace sirtaki
