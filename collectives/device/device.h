// Memory, streams and kernels of one GPU, independent of the GPU library. Tests have an implementation without a GPU.
// Any thread may call. No call blocks unless its comment says so. Errors are thrown as Error(kAborted) with the
// library's own message.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/types.h"
#include "math/scale.h"

namespace sirtaki {

// The library's own handle; null is its default stream. Operations on one stream run in order.
using Stream = void*;

// A point in a stream: it is reached when all operations queued before it have finished.
class Event {
 public:
  virtual ~Event() = default;
  virtual Stream stream() const = 0;
  // Number of this event on its device. Of two events on one stream, the one with the larger number is later.
  virtual std::uint64_t number() const = 0;
  virtual bool reached() = 0;
  // Operations queued on the stream from now on wait for this point.
  virtual void block_stream(Stream stream) = 0;
  // The same for all streams of the device; see Device::record_all.
  virtual void block_all_streams();
  virtual void block() = 0;  // blocks this thread until the point is reached
};
using EventPtr = std::shared_ptr<Event>;

// Memory that frees itself; the device outlives it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::byte* data, std::size_t size, std::function<void(std::byte*)> release)
      : data_(data, std::move(release)), size_(size) {}
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return data_ == nullptr ? 0 : size_; }
  // Leaks the memory on purpose, because it may still be written to.
  void leak() { static_cast<void>(data_.release()); }

 private:
  std::unique_ptr<std::byte, std::function<void(std::byte*)>> data_{nullptr, [](std::byte*) {}};
  std::size_t size_ = 0;
};

// Part of a conversion: `count` elements.
struct Part {
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual int number() const = 0;
  // A text that identifies this GPU's hardware in all processes.
  virtual const std::string& identity() const = 0;

  // Runs the calls of another library with this device as the current one of the thread.
  virtual void with_context(const std::function<void()>& calls) = 0;

  virtual Stream make_stream() = 0;  // of high priority, not ordered with the default stream
  virtual void destroy(Stream stream) = 0;
  virtual EventPtr record(Stream stream) = 0;
  // A point whose time the GPU keeps. Such a point costs the GPU more.
  virtual EventPtr record_timed(Stream stream) = 0;
  // The time between two points of record_timed() that were reached.
  virtual std::chrono::nanoseconds elapsed(const Event& from, const Event& to) = 0;
  // For a framework that does not reveal its streams: a point after all work that this process has queued so far.
  // Throws Error(kPrecondition) where the device cannot do that.
  virtual EventPtr record_all();
  // Are operations on this stream being captured into a graph, rather than run?
  virtual bool is_capturing(Stream stream) = 0;

  virtual DeviceMemory allocate(std::size_t bytes) = 0;         // null data if there is not enough memory
  virtual DeviceMemory allocate_pinned(std::size_t bytes) = 0;  // host memory that the device copies from and to
  virtual void copy(void* out, const void* in, std::size_t bytes, Stream stream) = 0;
  virtual std::string free_memory() = 0;  // free and total memory, for messages

  // Why the two below cannot be called; empty if they can.
  virtual const std::string& lacks_kernels() = 0;
  // out = to(from(in) * scale) for each part, as kernels.h's convert, in as few launches as there can be.
  virtual void convert(DType to, DType from, std::span<const Part> parts, Scale scale, Stream stream) = 0;
  virtual void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count, Stream stream) = 0;
};

// The GPU of this number in this process. Throws Error(kPrecondition) with the loader's message if there is none.
using Devices = std::function<Device&(int number)>;

}  // namespace sirtaki
