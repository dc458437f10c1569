// Sums slices between hosts, for a two-level allreduce. The leaders of one slice have kCount rails, so that the slices
// of kCount pieces are exchanged at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/task.h"
#include "memory/host_buffer.h"
#include "plane/data_plane.h"
#include "plane/rail.h"

namespace sirtaki {

class SliceExchange {
 public:
  static constexpr std::size_t kCount = 2;

  // For a rank that leads no slice.
  SliceExchange() = default;
  // kCount rails; `slice_bytes`: the size in bytes of the largest slice.
  SliceExchange(std::vector<Rail> rails, std::size_t slice_bytes);
  SliceExchange(SliceExchange&&) = default;
  ~SliceExchange();

  // The buffer for the slice of piece number `piece`, and for its result. Pieces take turns: it may be written once
  // the result of piece - kCount has been read.
  std::byte* memory(std::size_t piece) const { return rails_[piece % kCount]->memory.data(); }
  // Starts to sum the slice over all hosts. All leaders of a slice make the same calls in the same order.
  void start(std::size_t piece, DType dtype, ReduceOp op, std::int64_t count);
  // Waits for the result of this piece, and moves all rails on meanwhile. Null for a rank that leads no slice.
  PendingPtr arrival(std::size_t piece);
  // Waits for `other`, and moves all rails on meanwhile.
  PendingPtr alongside(PendingPtr other);

 private:
  struct RailState {
    Rail rail;
    HostBuffer memory;
    Segment segment{};
    Task task{};
    bool running = false;
  };
  class Wait;

  bool advance();

  std::vector<std::unique_ptr<RailState>> rails_;
};

}  // namespace sirtaki
