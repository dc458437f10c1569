// Allreduce of GPU tensors among several hosts. NCCL reduce-scatters within each host, so that every rank has one
// slice. MPI, or the planes for host memory, sum the slices between hosts, and NCCL gathers them within the host. Each
// byte crosses the network once for each host, and all ranks of a host share that work. 16-bit floats are sent and
// summed in float32 and rounded once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "plane/data_plane.h"
#include "plane/gpu/mpi_gpu.h"
#include "plane/gpu/staged.h"
#include "plane/nccl/nccl.h"
#include "plane/rail.h"
#include "transport/transport.h"

namespace sirtaki {

// The two levels of a group, and the planes between hosts.
struct HostLevels {
  std::unique_ptr<Transport> host;  // this rank's host
  Rail rail;                        // the ranks with this local rank on all hosts
};

// Collective over the group; blocks. Null on all ranks, with the reason in `why`, unless there are several hosts with
// equally many ranks.
std::unique_ptr<HostLevels> make_host_levels(Transport& transport, const std::vector<int>& hosts,
                                             const MakeRail& make_rail, std::string& why);

class HierarchicalNccl {
 public:
  // The levels outlive it. `mpi`: the MPI of all ranks accepts GPU memory.
  HierarchicalNccl(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream, const HostLevels& levels,
                   const NcclMembers& host_members, bool mpi);

  // As in NcclCollectives.
  Task connect() { return nccl_.connect(); }
  void check_queued() const { nccl_.check_queued(); }
  void abort() { nccl_.abort(); }
  // Not all planes between hosts can: MPI has no maximum that keeps NaN.
  bool can_reduce(const Reduction& reduction) const;
  Task allreduce(Reduction reduction, std::span<const Segment> segments);

 private:
  static Reduction between(const Reduction& reduction);
  static PlaneQuery query(const Reduction& plain, std::int64_t count);
  std::byte* buffer_of(std::size_t bytes);
  Task between_hosts(const Reduction& reduction, Segment slice);

  Device& device_;
  Stream stream_;
  int local_rank_;
  int local_size_;
  bool kernels_;
  const DataPlane& rail_;
  NcclCollectives nccl_;
  StagedCollectives staged_;
  std::unique_ptr<MpiGpuCollectives> mpi_;
  DeviceMemory buffer_;
};

}  // namespace sirtaki
