// The way between hosts of a collective in two levels: one rank of each host, a transport and a plane among them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

class MpiCommunicator;

struct Rail {
  std::unique_ptr<Transport> transport;         // null on a rank that is not in the rail
  std::unique_ptr<DataPlane> plane;             // can allreduce host memory
  const MpiCommunicator* gpu_memory = nullptr;  // if the MPI of this rank accepts GPU memory; lives with the transport
};

// Makes a rail of these ranks of a group. Collective over all ranks of the group; blocks.
using MakeRail = std::function<Rail(const std::vector<int>& ranks)>;

}  // namespace sirtaki
