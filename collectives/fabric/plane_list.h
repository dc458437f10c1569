// The data planes of a group, in order of preference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plane/gpu/gpu.h"
#include "plane/plane_choice.h"
#include "plane/rail.h"
#include "transport/transport.h"

namespace sirtaki {

enum class PlaneKind { kSharedMemory, kTwoLevel, kNetwork, kPointToPoint, kGpu };

// Everything that the list depends on. These facts are equal on all ranks.
struct PlaneFacts {
  std::vector<int> hosts;           // a number for each rank, equal where ranks share a host
  bool shared_memory = true;        // may ranks of a host use it?
  bool network_collectives = true;  // has the network collectives of its own?
};

// The only list of data planes. Each batch runs on the first plane that supports it.
std::vector<PlaneKind> order_of_planes(const PlaneFacts& facts);

struct PlaneOptions {
  bool shared_memory = true;
  bool hierarchical_allreduce = false;            // of GPU tensors
  GpuOptions gpus{};                              // without `mpi` and `levels`, which differ between groups
  std::function<void(const std::string&)> log{};  // one line for people
};

// For fabrics that are split off each other: all of them together report only their first line for people.
PlaneOptions with_one_line(PlaneOptions options);

// What a network contributes to the planes of one group.
struct NetworkPlanes {
  std::function<std::unique_ptr<DataPlane>()> make_plane{};  // its own collectives; empty: it has none
  MakeRail make_rail{};
  const MpiCommunicator* gpu_memory = nullptr;  // if the MPI of this rank accepts GPU memory
};

// Makes the planes of order_of_planes(). If a host has too little shared memory, all ranks omit that plane. Collective
// over the transport's ranks; blocks. The transport outlives the planes.
DataPlanes make_planes(Transport& transport, const std::vector<int>& hosts, const PlaneOptions& options,
                       const NetworkPlanes& network);

}  // namespace sirtaki
