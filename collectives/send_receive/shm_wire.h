// Frames through shared memory: a ring of bytes from each rank to each other. A rank that has written wakes the reader.
#pragma once

#include <string>

#include "send_receive/wire.h"

namespace sirtaki {

// Collective over the transport's ranks, which share a host and wake each other; blocks. Null on all ranks if a rank
// cannot get the memory; `why` then says what failed.
std::unique_ptr<Wire> make_shm_wire(Transport& transport, std::string& why);

}  // namespace sirtaki
