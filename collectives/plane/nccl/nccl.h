// Collectives on GPU memory by NCCL. Large tensors are reduced in place, in one NCCL group with a buffer that holds the
// small ones. A verb returns when its work is queued on the stream.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "plane/data_plane.h"
#include "plane/nccl/nccl_communicator.h"
#include "plane/nccl/nccl_packing.h"
#include "plane/nccl/nccl_reduction.h"

namespace sirtaki {

class NcclCollectives {
 public:
  NcclCollectives(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream, NcclMembers members)
      : communicator_(std::move(library), device, stream, members) {}

  // As in NcclCommunicator.
  Task connect() { return communicator_.connect(); }
  void check_queued() const { communicator_.check_queued(); }
  void abort() { communicator_.abort(); }

  // Without kernels, operations that NCCL lacks (16-bit integers, scaled integers, ...) are not supported.
  bool can_reduce(const Reduction& reduction) const;
  // `wire`: as in nccl_reduction(); it needs kernels.
  Task allreduce(Reduction reduction, std::span<const Segment> segments, std::optional<DType> wire = std::nullopt);
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments);
  Task allgather(std::size_t element_size, const Spread& spread);
  Task reducescatter(Reduction reduction, const Spread& spread);
  Task alltoall(std::size_t element_size, const Exchange& exchange);

 private:
  int operation(const Reduction& reduction, const NcclReduction& how);
  std::byte* buffer_of(DeviceMemory& memory, std::int64_t bytes, const char* what);
  std::vector<Segment> with_scratch(DType dtype, ReduceOp op, std::vector<Segment> segments);
  Segment pack(const Reduction& reduction, const NcclReduction& how, const NcclFilling& filling);
  void unpack(const Reduction& reduction, const NcclReduction& how, const NcclFilling& filling);
  void scale(DType dtype, const NcclReduction& how, std::span<const Segment> results);
  void queue_allreduce(DType dtype, int op, std::span<const Segment> segments);
  void queue_reducescatter(const void* in, void* out, DType dtype, int op, std::span<const std::int64_t> counts);

  NcclCommunicator communicator_;
  DeviceMemory packed_;
  DeviceMemory scratch_;
};

}  // namespace sirtaki
