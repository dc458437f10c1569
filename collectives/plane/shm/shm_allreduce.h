// Two algorithms for allreduce through shared memory. Both work without a fusion buffer: they read and write the
// segments directly.
#pragma once

#include <cstddef>
#include <span>

#include "plane/data_plane.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {

// For small batches, which fit into one slot. Every rank copies its elements into its slot, then reduces all slots
// itself, so ranks wait for each other only once. `inputs` has room for one pointer for each rank. With a barrier, the
// slot holds the barrier's words before the elements. If the barrier calls the batch off, nothing is reduced.
Task shm_allreduce_at_once(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                           std::span<const std::byte*> inputs, PlanBarrier* barrier = nullptr);

// For large batches, in pieces that stay in cache. Every rank reduces its part of a piece and writes the result back
// into the slots of the other ranks. In its own part a rank copies nothing: it reads elements from its own tensor and
// writes results there.
Task shm_allreduce_in_pieces(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                             std::size_t piece_bytes);

}  // namespace sirtaki
