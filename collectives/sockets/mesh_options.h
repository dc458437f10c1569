// What a rank must know to connect to the other ranks of its job.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/time_limits.h"
#include "sockets/socket.h"

namespace sirtaki {

struct MeshOptions {
  int rank = 0;
  std::vector<SocketAddress> addresses;  // by rank: where each accepts connections
  Bytes key;                             // the job's secret
  std::uint32_t generation = 1;
  std::chrono::seconds silence = kSilence;  // of another end, until a connection is broken; 0: the system's limit
  Descriptor listener;                      // at this rank's address, not blocking; none for a job of one rank
};

}  // namespace sirtaki
