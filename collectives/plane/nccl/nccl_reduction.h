// Translates a reduction into NCCL's dtypes and operators.
#pragma once

#include <optional>

#include "math/scale.h"
#include "plane/data_plane.h"
#include "plane/nccl/nccl_library.h"

namespace sirtaki {

// NCCL reduces elements of dtype `wire`. If `converts` is false, they have that dtype already, and NCCL multiplies them
// by `factor` before the sum. Else kernels convert them before, with factor `before`. Afterwards kernels convert the
// results back, or scale them in place, by `after`.
struct NcclReduction {
  DType wire = DType::kFloat32;
  NcclOp op = kNcclSum;
  bool converts = false;
  double factor = 1.0;
  double before = 1.0;
  Scale after = {};

  bool needs_kernels() const { return converts || !after.is_one(); }
};

// `wire`: the dtype in which a sum of floats is sent; none: NCCL's best choice.
NcclReduction nccl_reduction(const Reduction& reduction, std::optional<DType> wire = std::nullopt);

// The dtype in which values accumulate (wire_dtype() of kernels.h), or the next wider one that NCCL has.
DType nccl_wire(const Reduction& reduction);

// NCCL's number of a dtype; NCCL has no 16-bit integers.
NcclType nccl_type(DType dtype);

}  // namespace sirtaki
