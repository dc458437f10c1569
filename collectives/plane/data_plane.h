// Collectives on buffers, for the ranks of one group. A plane does not negotiate, time or log anything. All ranks call
// it with the same arguments, except for addresses. The arguments live until the task has finished.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/task.h"
#include "base/types.h"
#include "device/device.h"
#include "math/reduction.h"
#include "plane/plan_barrier.h"

namespace sirtaki {

// One tensor of a batch; in == out is allowed, any other overlap is not. `count` is in elements. On a GPU, a rank that
// has joined has no memory for the tensor: both addresses are null, and the plane contributes neutral elements.
struct Segment {
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
};

// A tensor in parts, counts[r] elements for rank r, in the order of the ranks. allgather: `in` is this rank's part, and
// `out` gets the parts of all. reducescatter: `in` has all parts, and `out` gets this rank's part, reduced.
struct Spread {
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<std::int64_t> counts;
};

// The arguments of alltoall. `in` has send_counts[r] elements for rank r, in the order of the ranks. `out` gets
// receive_counts[r] elements from rank r, in the same order.
struct Exchange {
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> receive_counts;
  std::int64_t longest = 0;  // the largest count of any rank, also of its own elements; equal on all ranks
};

// Describes a collective, to ask a plane whether it supports it. The same on every rank.
struct PlaneQuery {
  Verb verb = Verb::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int device = kHostDevice;
  std::int64_t bytes = 0;  // of the largest part of a tensor that any rank holds
};

// The GPU of a batch, and the events on its streams that must come first.
struct StreamPosition {
  int device = kHostDevice;     // this rank's GPU; kHostDevice if this rank has none in the batch
  std::vector<EventPtr> after;  // the batch runs after these events
  std::int64_t bytes = 0;       // as in PlaneQuery
};

class DataPlane {
 public:
  virtual ~DataPlane() = default;
  virtual std::string_view name() const = 0;
  // For statistics: the name of the plane that carried the last batch. A plane made of other planes names one of them.
  virtual std::string_view carrier() const { return name(); }
  virtual bool supports(const PlaneQuery& query) const = 0;
  // Does a rank wake the others (Transport::wake) whenever they can continue? If not, they must poll.
  virtual bool wakes() const { return false; }

  // For GPU planes. begin() is called before the verbs of a batch. A verb's task ends when all work is queued. end()
  // gives the event after which the results are there. Between begin() and end(), results are written on stream().
  virtual void begin(const StreamPosition& position) { static_cast<void>(position); }
  virtual EventPtr end() { return nullptr; }
  virtual Stream stream() const { return nullptr; }
  virtual Device* device() const { return nullptr; }  // of stream(); null for host memory
  // Throws if queued work has failed. True while some queued work is unfinished: call again later.
  virtual bool watch() { return false; }
  // The job has failed: stops queued work that waits for other ranks.
  virtual void abort() {}

  // The segments are one batch. Small segments share messages.
  virtual Task allreduce(Reduction reduction, std::span<const Segment> segments) = 0;
  // A plan barrier, then an allreduce unless a rank departs from the plan. A rank that departs gives no segments. Host
  // memory only.
  virtual Task allreduce_behind_barrier(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments);
  // `element_size`: bytes of an element. The root's `in` is read. `out` is written on all other ranks; on GPUs on the
  // root, too.
  virtual Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) = 0;
  virtual Task allgather(std::size_t element_size, const Spread& spread) = 0;
  virtual Task reducescatter(Reduction reduction, const Spread& spread) = 0;
  virtual Task alltoall(std::size_t element_size, const Exchange& exchange) = 0;
};

}  // namespace sirtaki
