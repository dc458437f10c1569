// The way of slices between hosts: a few planes among the leaders of one slice, so that as many pieces are under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/host_buffer.h"
#include "base/task.h"
#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

class SliceExchange {
 public:
  static constexpr std::size_t kCount = 2;

  struct Carrier {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<DataPlane> plane;
  };

  // For a rank that leads nothing.
  SliceExchange() = default;
  // kCount rails; `room` is the size in bytes of the largest slice.
  SliceExchange(std::vector<Carrier> carriers, std::size_t room);
  SliceExchange(SliceExchange&&) = default;
  ~SliceExchange();

  // Where the slice that travels as number `piece` is and its result comes; free once piece - kCount has arrived.
  std::byte* memory(std::size_t piece) const { return rails_[piece % kCount]->memory.data(); }
  // The slice's elements over all hosts. The same on all leaders of a slice.
  void start(std::size_t piece, DType dtype, ReduceOp op, std::int64_t count);
  // Ready when it is there; all others go on meanwhile. Null for a rank that leads nothing.
  PendingPtr arrival(std::size_t piece);
  // Another wait, during which all rails go on.
  PendingPtr alongside(PendingPtr other);

 private:
  struct Rail {
    Carrier carrier;
    HostBuffer memory;
    Segment segment{};
    Task task{};
    bool running = false;
  };
  class Wait;

  bool advance();

  std::vector<std::unique_ptr<Rail>> rails_;
};

}  // namespace sirtaki
