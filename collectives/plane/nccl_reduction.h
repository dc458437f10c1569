// How a reduction is put to NCCL.
#pragma once

#include <optional>

#include "plane/data_plane.h"
#include "plane/nccl_library.h"
#include "scale.h"

namespace sirtaki {

// Elements travel as `wire`. Unless `converts`, that is what they are, and NCCL multiplies them by `factor` before it
// adds them up; else they are converted before, times `before`. Afterwards they are converted back, or where they lie,
// scaled by `after`.
struct NcclReduction {
  DType wire = DType::kFloat32;
  NcclOp op = kNcclSum;
  bool converts = false;
  double factor = 1.0;
  double before = 1.0;
  Scale after = {};

  bool needs_kernels() const { return converts || !after.is_one(); }
};

// `wire`: what a sum of floats is to travel as; none: as NCCL does it best.
NcclReduction nccl_reduction(const Reduction& reduction, std::optional<DType> wire = std::nullopt);

// The dtype in which values accumulate (wire_dtype() of kernels.h), or the next wider one that NCCL has.
DType nccl_wire(const Reduction& reduction);

// Of a dtype that travels; there are no 16-bit integers in NCCL.
NcclType nccl_type(DType dtype);

}  // namespace sirtaki
