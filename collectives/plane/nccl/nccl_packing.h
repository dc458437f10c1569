// Which tensors of a batch NCCL reduces where they lie, and which are packed together first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plane/data_plane.h"
#include "plane/nccl/nccl_reduction.h"

namespace sirtaki {

// What is packed at a time: whole tensors or parts, each at a multiple of 16 bytes, which a thread of a kernel reads at
// once.
struct NcclFilling {
  std::vector<Segment> parts;
  std::int64_t bytes = 0;  // of the buffer
};

struct NcclBatch {
  std::vector<Segment> direct;
  std::vector<NcclFilling> fillings;
};

// A function of counts alone, apart from addresses, so that all ranks get the same.
NcclBatch divide(const NcclReduction& how, DType dtype, bool kernels, std::span<const Segment> segments);

// Where the next part begins.
std::int64_t next_place(std::int64_t place, std::int64_t bytes);

}  // namespace sirtaki
