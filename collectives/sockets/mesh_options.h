// What a rank must know to connect to the other ranks of its job.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "sockets/socket.h"

namespace sirtaki {

struct MeshOptions {
  int rank = 0;
  std::vector<SocketAddress> addresses;  // by rank: where each accepts connections
  Bytes key;                             // the job's secret
  std::uint32_t generation = 1;
  Descriptor listener;  // at this rank's address, not blocking; none for a job of one rank
};

}  // namespace sirtaki
