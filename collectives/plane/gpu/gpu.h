// The plane for tensors on GPUs: by NCCL where all ranks have it and it can do what is asked, otherwise straight by an
// MPI that takes GPU memory, otherwise by way of host memory and the planes for that; or, if asked, by NCCL in each
// host and otherwise between hosts. Which, the ranks agree on when the first GPU tensor comes, so that a job without
// any never touches a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "mpi/mpi_communicator.h"
#include "plane/data_plane.h"
#include "plane/nccl/hierarchical.h"
#include "plane/nccl/nccl_library.h"
#include "transport/transport.h"

namespace sirtaki {

struct GpuOptions {
  Devices devices;
  std::function<int()> usual;  // the GPU of a rank that has submitted no GPU tensor yet, and has joined
  std::function<std::shared_ptr<const NcclLibrary>(std::string& why)> load_nccl;
  // The group's communicator, if this rank's MPI takes GPU memory; it outlives the plane.
  const MpiCommunicator* mpi = nullptr;
  // If the group is to allreduce in two levels, within each host and between them.
  std::unique_ptr<HostLevels> levels;
  std::string operations;                        // as Settings::gpu_operations
  std::function<void(const std::string&)> tell;  // one line for people
  std::function<int()> dead_rank;                // of the job: one whose process has died, -1 if none is known
};

// The host planes and the transport outlive it.
std::unique_ptr<DataPlane> make_gpu_plane(Transport& transport, std::vector<DataPlane*> host_planes,
                                          GpuOptions options);

}  // namespace sirtaki
