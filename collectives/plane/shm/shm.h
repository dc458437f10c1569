// Collectives through shared memory, for ranks that are all on one host. There is no fusion buffer: a batch's segments
// are copied into slots, and results out of them, piece by piece, where they lie. Small batches are summed by every
// rank for itself; large ones are cut into pieces that stay in cache, of which every rank reduces its part and writes
// the result back into all slots. Each element is reduced in the order of the ranks, so all ranks get the same bits,
// every time.
#pragma once

#include <memory>
#include <string>

#include "host/shm_segment.h"
#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

// Collective over the transport's ranks, which must share a host; blocks. Null on all ranks if there is not enough
// shared memory; `why` then says how much was lacking and what to do.
std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::string& why);

// Over a segment of shm_plane_bytes() that all ranks have.
std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::unique_ptr<ShmSegment> segment);
std::size_t shm_plane_bytes(int ranks);

}  // namespace sirtaki
