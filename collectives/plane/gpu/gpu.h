// The data plane for tensors on GPUs. It uses NCCL where all ranks have it and NCCL supports the operation; else an MPI
// that accepts GPU memory; else pinned host memory and the planes for host memory. On request NCCL works within each
// host and another plane between hosts. The ranks agree on this at the first GPU tensor, so that a job without GPU
// tensors never touches a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "mpi/mpi_communicator.h"
#include "plane/data_plane.h"
#include "plane/gpu/hierarchical.h"
#include "plane/nccl/nccl_library.h"
#include "transport/transport.h"

namespace sirtaki {

struct GpuOptions {
  Devices devices;
  std::function<int()> usual;  // the GPU of a rank that has joined before it submitted a GPU tensor
  std::function<std::shared_ptr<const NcclLibrary>(std::string& why)> load_nccl;
  // The group's communicator, if this rank's MPI accepts GPU memory; it outlives the plane.
  const MpiCommunicator* mpi = nullptr;
  // Set if allreduce works in two levels: within each host, and between hosts.
  std::shared_ptr<HostLevels> levels;
  std::string operations;                       // as Settings::gpu_operations
  std::function<void(const std::string&)> log;  // one line for people
  std::function<int()> dead_rank;               // global rank of a dead process, -1 if none is known
};

// The host planes and the transport outlive it.
std::unique_ptr<DataPlane> make_gpu_plane(Transport& transport, std::vector<DataPlane*> host_planes,
                                          GpuOptions options);

}  // namespace sirtaki
