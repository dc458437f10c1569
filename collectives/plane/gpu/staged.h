// Collectives on GPU memory by way of pinned host memory. Pieces are copied to the host, a plane for host memory
// combines them, and the results are copied back. Several pieces are in progress at once, so that copies in both
// directions overlap the collective.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "plane/data_plane.h"
#include "plane/gpu/staging_buffers.h"

namespace sirtaki {

class StagedCollectives {
 public:
  // These collectives start after the work queued on `stream` before, and later work waits for their results.
  StagedCollectives(Device& device, Stream stream, int rank, std::vector<DataPlane*> host_planes)
      : device_(device), stream_(stream), rank_(rank), host_planes_(std::move(host_planes)), buffers_(device, stream) {}

  // As in DataPlane, on GPU memory. The query selects the host plane.
  Task allreduce(PlaneQuery query, Reduction reduction, std::span<const Segment> segments);
  Task broadcast(PlaneQuery query, int root, std::size_t element_size, std::span<const Segment> segments);
  Task allgather(PlaneQuery query, std::size_t element_size, const Spread& spread);
  Task reducescatter(PlaneQuery query, Reduction reduction, const Spread& spread);
  Task alltoall(PlaneQuery query, std::size_t element_size, const Exchange& exchange);

 private:
  DataPlane& host_plane(PlaneQuery query) const;

  Device& device_;
  Stream stream_;
  int rank_;
  std::vector<DataPlane*> host_planes_;
  StagingBuffers buffers_;
};

}  // namespace sirtaki
