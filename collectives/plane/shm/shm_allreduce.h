// The two ways of adding up through shared memory, both without a fusion buffer: segments are read and written where
// they lie.
#pragma once

#include <cstddef>
#include <span>

#include "plane/data_plane.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {

// For small batches, which fit into one slot: every rank copies its elements into its slot and then reduces all slots
// for itself. One hand-over. `inputs` is room for one pointer for each rank. With a meeting its words go ahead of the
// elements, in the same slot, and nothing is reduced if it is called off.
Task shm_allreduce_at_once(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                           std::span<const std::byte*> inputs, PlanBarrier* meeting = nullptr);

// For large ones: pieces that stay in cache, of which every rank reduces its part and writes the result back into the
// slots of the others. What a rank reduces itself it never copies: it reads its own elements, and writes its own
// result, where they lie.
Task shm_allreduce_in_pieces(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                             std::size_t piece_bytes);

}  // namespace sirtaki
