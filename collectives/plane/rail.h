// The part of a two-level collective between hosts: a transport and a plane for one rank of each host.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

class MpiCommunicator;

struct Rail {
  std::unique_ptr<Transport> transport;         // null on a rank that does not belong to the rail
  std::unique_ptr<DataPlane> plane;             // can allreduce host memory
  const MpiCommunicator* gpu_memory = nullptr;  // if the MPI of this rank accepts GPU memory; lives with the transport
};

// Makes a rail of these ranks of a group. Collective over all ranks of the group; blocks.
using MakeRail = std::function<Rail(const std::vector<int>& ranks)>;

}  // namespace sirtaki
