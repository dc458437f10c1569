// Collectives on GPU memory by an MPI that accepts such memory. Tensors that are reduced are first gathered into a
// buffer on the GPU, in the dtype of the reduction, so that MPI only adds.
#pragma once

#include <span>

#include "device/device.h"
#include "mpi/mpi_communicator.h"
#include "plane/data_plane.h"

namespace sirtaki {

class MpiGpuCollectives {
 public:
  // The communicator outlives it. `kernels`: can all ranks convert dtypes on the GPU? Without kernels it cannot reduce.
  MpiGpuCollectives(const MpiCommunicator& communicator, Device& device, Stream stream, bool kernels);
  ~MpiGpuCollectives();
  MpiGpuCollectives(const MpiGpuCollectives&) = delete;
  MpiGpuCollectives& operator=(const MpiGpuCollectives&) = delete;

  // `bytes`: as in PlaneQuery, 0 for allreduce and broadcast, which work piece by piece.
  bool can_move(std::int64_t bytes) const;
  bool can_reduce(const Reduction& reduction, std::int64_t bytes) const;

  Task allreduce(Reduction reduction, std::span<const Segment> segments);
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments);
  Task allgather(std::size_t element_size, const Spread& spread);
  Task reducescatter(Reduction reduction, const Spread& spread);
  Task alltoall(std::size_t element_size, const Exchange& exchange);

 private:
  // Waits until the work queued on the stream has finished: MPI does not know streams.
  PendingPtr quiet();
  PendingPtr completion(MpiRequest request);
  std::byte* buffer_of(DeviceMemory& memory, std::size_t bytes);

  const MpiCommunicator& communicator_;
  Device& device_;
  Stream stream_;
  int rank_;
  bool kernels_;
  DeviceMemory in_;
  DeviceMemory out_;
  int in_flight_ = 0;
};

}  // namespace sirtaki
