// Pinned host memory through which GPU memory passes piece by piece. There are several buffers, so that copies in both
// directions overlap the work on the host.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/task.h"
#include "device/device.h"

namespace sirtaki {

// A copy between GPU memory and a buffer: `count` elements at element `position` of the buffer.
struct StagingCopy {
  const std::byte* memory;
  std::int64_t position;
  std::int64_t count;
};

// One use of a buffer. `combine` works in the buffer, after the copies, and after fill() has set the remaining
// elements.
struct StagingStep {
  std::vector<StagingCopy> in;
  std::vector<StagingCopy> out;
  std::int64_t count = 0;  // buffer size in elements
  std::function<void(std::byte* buffer)> fill;
  std::function<Task(std::byte* buffer)> combine;
};

class StagingBuffers {
 public:
  // All copies start after the work queued on `stream` before, and later work on it waits for them.
  StagingBuffers(Device& device, Stream stream);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  // Runs the steps in order; copies of neighbouring steps overlap.
  Task run(std::vector<StagingStep> steps, std::size_t element_size);

 private:
  struct Buffer {
    DeviceMemory host;
    DeviceMemory packed;  // on the GPU, where many small tensors become one copy
    EventPtr fetched;
    EventPtr free;  // reached when its contents have been copied back
  };

  void fetch(const StagingStep& step, Buffer& buffer, std::size_t element_size);
  void put_back(const StagingStep& step, Buffer& buffer, std::size_t element_size);
  void move(std::span<const StagingCopy> copies, Buffer& buffer, std::size_t element_size, bool to_host, Stream stream);
  bool packs(std::span<const StagingCopy> copies, Buffer& buffer);
  static std::byte* place_of(const StagingCopy& copy, const DeviceMemory& packed, std::size_t element_size);
  static StagingCopy span_of(std::span<const StagingCopy> copies, const Buffer& buffer, std::size_t element_size);
  void enlarge(Buffer& buffer, std::size_t bytes);

  Device& device_;
  Stream stream_;
  Stream to_host_;
  Stream to_device_;
  std::array<Buffer, 3> buffers_;
  bool busy_ = false;
};

// Ready when the event is reached.
PendingPtr reached(EventPtr event);

}  // namespace sirtaki
