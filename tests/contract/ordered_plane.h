// A plane for GPUs as the suites can use it, whose planes are for host memory.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "fake_device.h"
#include "plane/data_plane.h"
#include "plane/gpu/staging_buffers.h"

namespace sirtaki::contract {

// Like a framework: what is to be sent is calculated on a stream and not there yet when the collective is asked for,
// and results are looked at when the plane's last event has been reached.
class OrderedPlane final : public DataPlane {
 public:
  OrderedPlane(DataPlane& plane, FakeDevice& device, Stream stream, int rank)
      : plane_(plane), device_(device), stream_(stream), rank_(rank) {}
  std::string_view name() const override { return "ordered"; }
  bool supports(const PlaneQuery& asked) const override {
    PlaneQuery query = asked;
    query.device = asked.device == kHostDevice ? 0 : kHostDevice;
    return plane_.supports(query);
  }

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    for (const Segment& segment : segments) late(segment.in, segment.count, size_of(reduction.dtype));
    begin();
    co_await plane_.allreduce(reduction, segments);
    co_await reached(plane_.end());
  }
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override {
    for (const Segment& segment : segments) {
      if (rank_ == root) late(segment.in, segment.count, element_size);
    }
    begin();
    co_await plane_.broadcast(root, element_size, segments);
    co_await reached(plane_.end());
  }
  Task allgather(std::size_t element_size, const Spread& spread) override {
    late(spread.in, spread.counts[static_cast<std::size_t>(rank_)], element_size);
    begin();
    co_await plane_.allgather(element_size, spread);
    co_await reached(plane_.end());
  }
  Task reducescatter(Reduction reduction, const Spread& spread) override {
    std::int64_t total = 0;
    for (const std::int64_t count : spread.counts) total += count;
    late(spread.in, total, size_of(reduction.dtype));
    begin();
    co_await plane_.reducescatter(reduction, spread);
    co_await reached(plane_.end());
  }
  Task alltoall(std::size_t element_size, const Exchange& exchange) override {
    std::int64_t total = 0;
    for (const std::int64_t count : exchange.send_counts) total += count;
    late(exchange.in, total, element_size);
    begin();
    co_await plane_.alltoall(element_size, exchange);
    co_await reached(plane_.end());
  }

 private:
  void late(const void* memory, std::int64_t count, std::size_t element_size) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
    if (memory == nullptr || bytes == 0) return;
    auto* place = static_cast<std::byte*>(const_cast<void*>(memory));
    std::vector<std::byte> right(place, place + bytes);
    std::memset(place, 0x55, bytes);
    device_.call(stream_, [place, right = std::move(right)] { std::memcpy(place, right.data(), right.size()); });
  }
  void begin() { plane_.begin({0, {device_.record(stream_)}, 0}); }

  DataPlane& plane_;
  FakeDevice& device_;
  Stream stream_;
  int rank_;
};

}  // namespace sirtaki::contract
