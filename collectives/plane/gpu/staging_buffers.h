// Pinned host memory through which GPU memory passes, piece by piece: a few rooms, so that copies in both directions
// run beside what is done with the pieces on the host.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/task.h"
#include "device/device.h"

namespace sirtaki {

// Between GPU memory and a room: `count` elements at element `position` of the room.
struct StagingCopy {
  const std::byte* memory;
  std::int64_t position;
  std::int64_t count;
};

// What one room is used for at a time. `combine` works in the room, after fill() has put there what no copy brings.
struct StagingStep {
  std::vector<StagingCopy> in;
  std::vector<StagingCopy> out;
  std::int64_t count = 0;  // elements of room that it needs
  std::function<void(std::byte* room)> fill;
  std::function<Task(std::byte* room)> combine;
};

class StagingBuffers {
 public:
  // `stream`: what was queued there comes before all copies, and what is queued later after them.
  StagingBuffers(Device& device, Stream stream);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  // One step after the other, copies ahead and behind.
  Task run(std::vector<StagingStep> steps, std::size_t element_size);

 private:
  struct Room {
    DeviceMemory host;
    DeviceMemory packed;  // on the GPU, where many small tensors become one copy
    EventPtr fetched;
    EventPtr free;  // what was in it has been copied back
  };

  void fetch(const StagingStep& step, Room& room, std::size_t element_size);
  void put_back(const StagingStep& step, Room& room, std::size_t element_size);
  void move(std::span<const StagingCopy> copies, Room& room, std::size_t element_size, bool to_host, Stream stream);
  bool packs(std::span<const StagingCopy> copies, Room& room);
  static std::byte* place_of(const StagingCopy& copy, const DeviceMemory& packed, std::size_t element_size);
  static StagingCopy span_of(std::span<const StagingCopy> copies, const Room& room, std::size_t element_size);
  void make_room(Room& room, std::size_t bytes);

  Device& device_;
  Stream stream_;
  Stream to_host_;
  Stream to_device_;
  std::array<Room, 3> rooms_;
  bool busy_ = false;
};

// Something to await: the point is reached.
PendingPtr reached(EventPtr event);

}  // namespace sirtaki
