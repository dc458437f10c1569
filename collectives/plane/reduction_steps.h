// What a plane does with elements before they travel, where they are added up, and after they have travelled.
#pragma once

#include "math/scale.h"
#include "plane/data_plane.h"

namespace sirtaki {

// Elements become `wire` times `before`, are combined by `combine`, and become the reduction's dtype again, scaled by
// `after`.
struct ReductionSteps {
  DType wire = DType::kFloat32;
  double before = 1.0;
  Reduction combine = {};  // of `wire`
  Scale after = {};
};

// For a plane in which the rank that combines elements has those of all ranks: it calls reduce_inputs().
ReductionSteps steps_of_fold(const Reduction& reduction);

// For a plane in which a library combines elements, or one host after the other: `combine` is the bare operation. An
// average of floats is of numbers that were halved until no sum of theirs can leave the range. That is exact, but for
// numbers so small that it makes them denormal.
ReductionSteps steps_of_library(const Reduction& reduction);

// The halvings of steps_of_library(), as the power of two that `before` divides by.
std::int64_t halving(const Reduction& reduction);

// Can only reduce_inputs() do it? Averages of 64-bit integers, whose sum may need more bits than any library adds up.
bool needs_fold(const Reduction& reduction);

// Does a library for the host do it by docs/arithmetic.md? Not what needs reduce_inputs(), nor the extremes of floats,
// among which MPI may lose a NaN, nor Adasum.
bool library_has(ReduceOp op, DType dtype);

}  // namespace sirtaki
