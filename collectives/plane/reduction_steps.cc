#include "plane/reduction_steps.h"

#include <bit>
#include <cstdint>

#include "math/kernels.h"

namespace sirtaki {

ReductionSteps steps_of_fold(const Reduction& reduction) {
  ReductionSteps steps{.wire = wire_dtype(reduction), .before = reduction.prescale, .combine = {}, .after = {}};
  steps.combine = {.dtype = steps.wire, .op = reduction.op};
  if (needs_fold(reduction) || (reduction.op == ReduceOp::kSum && !is_integer(reduction.dtype))) {
    steps.combine.postscale = reduction.postscale;
    steps.combine.divisor = reduction.divisor;
  } else {
    steps.after = {reduction.postscale, reduction.divisor};
  }
  return steps;
}

ReductionSteps steps_of_library(const Reduction& reduction) {
  const std::int64_t power = halving(reduction);
  ReductionSteps steps{.wire = wire_dtype(reduction),
                       .before = reduction.prescale / static_cast<double>(power),
                       .combine = {},
                       .after = {reduction.postscale, reduction.divisor}};
  steps.combine = {.dtype = steps.wire, .op = reduction.op};
  if (power == reduction.divisor) {
    steps.after.divisor = 1;
  } else {
    steps.after.factor *= static_cast<double>(power);
  }
  return steps;
}

std::int64_t halving(const Reduction& reduction) {
  if (!reduction.averages() || is_integer(reduction.dtype)) return 1;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(reduction.divisor)));
}

bool needs_fold(const Reduction& reduction) {
  return reduction.averages() && (reduction.dtype == DType::kInt64 || reduction.dtype == DType::kUint64);
}

bool library_has(ReduceOp op, DType dtype) {
  const bool is_float = !is_integer(dtype) && dtype != DType::kBool;
  switch (op) {
    case ReduceOp::kAdasum:
      return false;
    case ReduceOp::kAverage:
      return dtype != DType::kInt64 && dtype != DType::kUint64;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !is_float;
    default:
      return true;
  }
}

}  // namespace sirtaki
