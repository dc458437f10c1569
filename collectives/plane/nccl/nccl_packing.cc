#include "plane/nccl/nccl_packing.h"

#include <algorithm>

namespace sirtaki {
namespace {

// Tensors of at least this size are reduced in place: packing would cost more than a separate call in the NCCL group.
constexpr std::int64_t kDirectBytes = std::int64_t{1} << 20;
// Largest size of the packed buffer.
constexpr std::int64_t kFillingBytes = std::int64_t{64} << 20;
constexpr std::int64_t kAlignment = 16;

Segment part_of(const Segment& segment, std::int64_t offset, std::int64_t count) {
  if (segment.in == nullptr) return {nullptr, nullptr, count};
  return {static_cast<const std::byte*>(segment.in) + offset, static_cast<std::byte*>(segment.out) + offset, count};
}

void pack(std::vector<NcclFilling>& fillings, const Segment& segment, std::int64_t item_size, std::int64_t wire_size) {
  for (std::int64_t done = 0; done < segment.count;) {
    if (fillings.empty() || fillings.back().bytes >= kFillingBytes) fillings.emplace_back();
    NcclFilling& filling = fillings.back();
    const std::int64_t count = std::min(segment.count - done, (kFillingBytes - filling.bytes) / wire_size);
    filling.parts.push_back(part_of(segment, done * item_size, count));
    filling.bytes = next_place(filling.bytes, count * wire_size);
    done += count;
  }
}

}  // namespace

std::int64_t next_place(std::int64_t place, std::int64_t bytes) {
  return (place + bytes + kAlignment - 1) / kAlignment * kAlignment;
}

NcclBatch divide(const NcclReduction& how, DType dtype, bool kernels, std::span<const Segment> segments) {
  const auto item_size = static_cast<std::int64_t>(size_of(dtype));
  const auto filled = std::count_if(segments.begin(), segments.end(), [](const Segment& s) { return s.count > 0; });
  NcclBatch batch;
  for (const Segment& segment : segments) {
    if (segment.count == 0) continue;
    const bool apart = filled == 1 || !kernels || segment.count * item_size >= kDirectBytes;
    if (apart && !how.converts) {
      batch.direct.push_back(segment);
    } else {
      pack(batch.fillings, segment, item_size, static_cast<std::int64_t>(size_of(how.wire)));
    }
  }
  return batch;
}

}  // namespace sirtaki
