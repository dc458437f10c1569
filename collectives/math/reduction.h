// A reduction of the same elements of all ranks: dtype, operator and factors.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace sirtaki {

// out = postscale * op(prescale * in of every rank) / divisor. op is never kAverage: an average is a kSum whose divisor
// is the number of contributing ranks. docs/arithmetic.md has the rule for all planes.
struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t divisor = 1;

  bool averages() const { return op == ReduceOp::kSum && divisor != 1; }
  ReduceOp asked() const { return averages() ? ReduceOp::kAverage : op; }  // the op for a PlaneQuery
};

}  // namespace sirtaki
