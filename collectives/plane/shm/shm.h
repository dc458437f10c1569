// Collectives through shared memory, for ranks that are all on one host. There is no fusion buffer: segments are copied
// directly into channel slots, and results directly out of them, piece by piece. Of a small batch, every rank computes
// the whole sum itself. A large batch is cut into pieces that stay in cache. Every rank reduces its part of a piece and
// writes the result back into all slots. Each element is reduced in the order of the ranks, so all ranks always get the
// same bits.
#pragma once

#include <memory>
#include <string>

#include "host/shm_segment.h"
#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

// Collective over the transport's ranks, which must share a host; blocks. Null on all ranks if there is not enough
// shared memory; `why` then says how much is missing and what to do.
std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::string& why);

// Uses a segment of shm_plane_bytes() that all ranks have mapped.
std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::unique_ptr<ShmSegment> segment);
std::size_t shm_plane_bytes(int ranks);

}  // namespace sirtaki
