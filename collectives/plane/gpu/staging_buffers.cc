#include "plane/gpu/staging_buffers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace sirtaki {
namespace {

class Reached final : public Pending {
 public:
  explicit Reached(EventPtr event) : event_(std::move(event)) {}
  bool ready() override { return event_->reached(); }

 private:
  EventPtr event_;
};

// Elements of one size, of any dtype.
DType bits_of(std::size_t element_size) {
  constexpr std::array<DType, 4> kBits = {DType::kUint8, DType::kUint16, DType::kUint32, DType::kUint64};
  for (const DType dtype : kBits) {
    if (size_of(dtype) == element_size) return dtype;
  }
  return DType::kUint8;
}

}  // namespace

PendingPtr reached(EventPtr event) {
  if (event == nullptr || event->reached()) return nullptr;
  return std::make_unique<Reached>(std::move(event));
}

StagingBuffers::StagingBuffers(Device& device, Stream stream)
    : device_(device), stream_(stream), to_host_(device.make_stream()), to_device_(device.make_stream()) {}

StagingBuffers::~StagingBuffers() {
  if (busy_) {
    for (Buffer& buffer : buffers_) {
      buffer.host.leak();
      buffer.packed.leak();
    }
    return;
  }
  device_.destroy(to_host_);
  device_.destroy(to_device_);
}

void StagingBuffers::enlarge(Buffer& buffer, std::size_t bytes) {
  if (buffer.host.size() >= bytes) return;
  if (buffer.free != nullptr) buffer.free->block();
  buffer.host = {};
  buffer.host = device_.allocate_pinned(bytes);
  if (buffer.host.data() == nullptr) {
    throw Error(ErrorKind::kAborted, "no pinned host memory of " + std::to_string(bytes) +
                                         " bytes for GPU tensors that are sent through the host: raise the limit of "
                                         "locked memory (ulimit -l), or exchange smaller tensors");
  }
}

// Many small tensors become one copy, if kernels can gather them.
bool StagingBuffers::packs(std::span<const StagingCopy> copies, Buffer& buffer) {
  if (copies.size() < 2 || !device_.lacks_kernels().empty()) return false;
  if (buffer.packed.size() < buffer.host.size()) {
    if (buffer.free != nullptr) buffer.free->block();
    buffer.packed = {};
    buffer.packed = device_.allocate(buffer.host.size());
  }
  return buffer.packed.data() != nullptr;
}

std::byte* StagingBuffers::place_of(const StagingCopy& copy, const DeviceMemory& packed, std::size_t element_size) {
  return packed.data() + static_cast<std::size_t>(copy.position) * element_size;
}

// The range from the first to the last of the copies, in packed memory.
StagingCopy StagingBuffers::span_of(std::span<const StagingCopy> copies, const Buffer& buffer,
                                    std::size_t element_size) {
  const StagingCopy& first = copies.front();
  const StagingCopy& last = copies.back();
  return {place_of(first, buffer.packed, element_size), first.position, last.position + last.count - first.position};
}

void StagingBuffers::move(std::span<const StagingCopy> copies, Buffer& buffer, std::size_t element_size, bool to_host,
                          Stream stream) {
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * element_size; };
  for (const StagingCopy& copy : copies) {
    std::byte* staged = buffer.host.data() + bytes(copy.position);
    auto* memory = const_cast<std::byte*>(copy.memory);
    device_.copy(to_host ? staged : memory, to_host ? memory : staged, bytes(copy.count), stream);
  }
}

// Copies to the host; several tensors are packed first, because starting a copy takes as long as copying many
// kilobytes.
void StagingBuffers::fetch(const StagingStep& step, Buffer& buffer, std::size_t element_size) {
  enlarge(buffer, static_cast<std::size_t>(step.count) * element_size);
  if (buffer.free != nullptr) buffer.free->block_stream(to_host_);
  std::vector<StagingCopy> copies = step.in;
  if (packs(copies, buffer)) {
    const StagingCopy whole = span_of(copies, buffer, element_size);
    std::vector<Part> parts;
    for (const StagingCopy& copy : copies) {
      parts.push_back({copy.memory, place_of(copy, buffer.packed, element_size), copy.count});
    }
    device_.convert(bits_of(element_size), bits_of(element_size), parts, 1.0, to_host_);
    copies.assign(1, whole);
  }
  move(copies, buffer, element_size, true, to_host_);
  buffer.fetched = device_.record(to_host_);
}

void StagingBuffers::put_back(const StagingStep& step, Buffer& buffer, std::size_t element_size) {
  if (packs(step.out, buffer)) {
    const StagingCopy whole = span_of(step.out, buffer, element_size);
    move({&whole, 1}, buffer, element_size, false, to_device_);
    std::vector<Part> parts;
    for (const StagingCopy& copy : step.out) {
      parts.push_back({place_of(copy, buffer.packed, element_size), const_cast<std::byte*>(copy.memory), copy.count});
    }
    device_.convert(bits_of(element_size), bits_of(element_size), parts, 1.0, to_device_);
  } else {
    move(step.out, buffer, element_size, false, to_device_);
  }
  buffer.free = device_.record(to_device_);
}

Task StagingBuffers::run(std::vector<StagingStep> steps, std::size_t element_size) {
  busy_ = true;
  const EventPtr before = device_.record(stream_);
  before->block_stream(to_host_);
  before->block_stream(to_device_);
  for (std::size_t i = 0; i < std::min(buffers_.size(), steps.size()); ++i) fetch(steps[i], buffers_[i], element_size);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Buffer& buffer = buffers_[i % buffers_.size()];
    co_await reached(buffer.fetched);
    if (steps[i].fill) steps[i].fill(buffer.host.data());
    co_await steps[i].combine(buffer.host.data());
    put_back(steps[i], buffer, element_size);
    if (i + buffers_.size() < steps.size()) fetch(steps[i + buffers_.size()], buffer, element_size);
  }
  device_.record(to_device_)->block_stream(stream_);
  busy_ = false;
}

}  // namespace sirtaki
