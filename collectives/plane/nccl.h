// Collectives on GPU memory by NCCL. Large tensors are reduced where they lie, in one group with a buffer into which
// the small ones are packed. A verb ends when all is queued on the stream.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "plane/data_plane.h"
#include "plane/nccl_library.h"

namespace sirtaki {

// Who takes part, the same on all ranks but for `rank`.
struct NcclMembers {
  int rank = 0;
  int size = 1;
  NcclUniqueId id{};
  bool kernels = false;  // all ranks can convert
};

class NcclCollectives {
 public:
  NcclCollectives(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream, NcclMembers members);
  ~NcclCollectives();
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  // First. Ends when all ranks are connected.
  Task connect();

  // Without kernels, what NCCL cannot calculate by itself (16-bit integers, scaled integers, ...) is not to be had.
  bool can_reduce(const Reduction& reduction) const;
  Task allreduce(Reduction reduction, std::span<const Segment> segments);
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments);
  Task allgather(std::size_t element_size, const Spread& spread);
  Task reducescatter(Reduction reduction, const Spread& spread);
  Task alltoall(std::size_t element_size, const Exchange& exchange);

  // Throws what has gone wrong since.
  void check_queued();
  // Ends what is queued, on this rank, whatever other ranks do.
  void abort();

 private:
  struct Packed;
  using Calls = std::function<void()>;

  void leave();
  PendingPtr group(const Calls& calls);
  PendingPtr settled();
  int operation(const Reduction& reduction, double factor);
  std::byte* buffer(DeviceMemory& memory, std::size_t bytes, const char* what);
  void queue_direct(DType dtype, int op, std::span<const Segment> segments);
  void scatter(const void* in, void* out, DType dtype, int op, std::span<const std::int64_t> counts);
  std::vector<Segment> with_scratch(DType dtype, ReduceOp op, std::vector<Segment> segments);

  std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  Stream stream_;
  NcclMembers members_;
  NcclComm comm_ = nullptr;
  std::map<std::pair<DType, double>, int> scaled_sums_;
  DeviceMemory packed_;
  DeviceMemory scratch_;
};

}  // namespace sirtaki
