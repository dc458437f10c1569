// Adasum by vector halving and distance doubling: Maleki et al., "Scaling Distributed Training with Adaptive Summation"
// (2020). Two gradients a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, separately for each segment.
#pragma once

#include <cstddef>
#include <span>

#include "base/task.h"
#include "base/types.h"
#include "transport/transport.h"

namespace sirtaki {

// `buffer` holds the segments one after the other; `ends` is the end of each segment, in elements. The number of ranks
// must be a power of two. float32 and float64 only. Uses three tags for each doubling, from `tag` on.
Task adasum(Transport& transport, int tag, DType dtype, std::span<std::byte> buffer,
            std::span<const std::int64_t> ends);

}  // namespace sirtaki
