// Collectives on GPU memory by way of pinned host memory: pieces are copied to the host, a plane for host memory
// combines them, and the results are copied back. Several pieces are under way at once, so that copies in both
// directions run beside the collective.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "plane/data_plane.h"

namespace sirtaki {

class StagedCollectives {
 public:
  // `stream`: work before is ordered before these collectives, and work after them after their results.
  StagedCollectives(Device& device, Stream stream, int rank, std::vector<DataPlane*> host_planes);
  ~StagedCollectives();
  StagedCollectives(const StagedCollectives&) = delete;
  StagedCollectives& operator=(const StagedCollectives&) = delete;

  // As in DataPlane, on GPU memory. The query says what the host planes are asked for.
  Task allreduce(PlaneQuery query, Reduction reduction, std::span<const Segment> segments);
  Task broadcast(PlaneQuery query, int root, std::size_t element_size, std::span<const Segment> segments);
  Task allgather(PlaneQuery query, std::size_t element_size, const Spread& spread);
  Task reducescatter(PlaneQuery query, Reduction reduction, const Spread& spread);
  Task alltoall(PlaneQuery query, std::size_t element_size, const Exchange& exchange);

 private:
  struct Copy;
  struct Step;
  struct Room;
  static constexpr std::size_t kRooms = 3;

  DataPlane& host_plane(PlaneQuery query) const;
  Task run(std::vector<Step> steps, std::size_t element_size);
  void fetch(const Step& step, Room& room, std::size_t element_size);
  void put_back(const Step& step, Room& room, std::size_t element_size);
  void move(std::span<const Copy> copies, Room& room, std::size_t element_size, bool to_host, Stream stream);
  bool packs(std::span<const Copy> copies, Room& room);
  static std::byte* place_of(const Copy& copy, const DeviceMemory& packed, std::size_t element_size);
  static Copy span_of(std::span<const Copy> copies, const Room& room, std::size_t element_size);
  void make_room(Room& room, std::size_t bytes);

  Device& device_;
  Stream stream_;
  Stream to_host_;
  Stream to_device_;
  int rank_;
  std::vector<DataPlane*> host_planes_;
  std::unique_ptr<std::array<Room, kRooms>> rooms_;
  bool busy_ = false;
};

// Something to await: the point is reached.
PendingPtr reached(EventPtr event);

}  // namespace sirtaki
