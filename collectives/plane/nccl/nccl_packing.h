// Decides which tensors of a batch NCCL reduces in place, and which are packed into a buffer first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plane/data_plane.h"
#include "plane/nccl/nccl_reduction.h"

namespace sirtaki {

// The contents of one packed buffer: tensors or parts of tensors, each at a multiple of 16 bytes, which a kernel's
// thread reads at once.
struct NcclFilling {
  std::vector<Segment> parts;
  std::int64_t bytes = 0;  // of the buffer
};

struct NcclBatch {
  std::vector<Segment> direct;
  std::vector<NcclFilling> fillings;
};

// Apart from addresses it depends on counts only, so that all ranks get the same result.
NcclBatch divide(const NcclReduction& how, DType dtype, bool kernels, std::span<const Segment> segments);

// Where the next part begins.
std::int64_t next_place(std::int64_t place, std::int64_t bytes);

}  // namespace sirtaki
