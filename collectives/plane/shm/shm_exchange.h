// Allgather, reducescatter and alltoall through shared memory. In each turn a rank writes a piece for the other ranks
// into its own slot, and reads their pieces of the turn before directly into the result. So data moves in both
// directions at the same time, and pieces stay in cache. A rank never copies its own part through a slot. What fits
// into one turn costs one hand-over, and no coroutine unless a rank must wait.
#pragma once

#include <cstddef>

#include "plane/data_plane.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {

// `piece_bytes`: of a rank in a turn; at most a slot. `spread` and `exchange` live until the task has finished.
Task shm_allgather(ShmChannel& channel, std::size_t element_size, const Spread& spread, std::size_t piece_bytes);
Task shm_reducescatter(ShmChannel& channel, const Reduction& reduction, const Spread& spread, std::size_t piece_bytes);
Task shm_alltoall(ShmChannel& channel, std::size_t element_size, const Exchange& exchange, std::size_t piece_bytes);

}  // namespace sirtaki
