// Collectives on buffers, for the ranks of one group. A plane neither negotiates, times nor logs; what it is given is
// the same on every rank, apart from addresses. Arguments live until the task has finished.
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

// One tensor of a batch; in == out is allowed, any other overlap is not. Counts are elements. On a GPU, a rank that has
// joined has no memory for it: both addresses are null, and the plane contributes what changes nothing.
struct Segment {
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
};

// A tensor that is spread over the ranks: allgather puts counts[r] elements of rank r one after the other into out;
// reducescatter reduces in, where the counts[r] elements for each r follow one another, and gives rank r its part.
struct Spread {
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<std::int64_t> counts;
};

// A tensor that is exchanged: rank r gets the send_counts[r] elements that follow those for r - 1.
struct Exchange {
  const void* in = nullptr;
  void* out = nullptr;
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> receive_counts;
};

// What a plane is asked whether it can do; the same on every rank.
struct PlaneQuery {
  Verb verb = Verb::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int device = kHostDevice;
  std::int64_t bytes = 0;  // the largest amount that any one rank holds of one tensor
};

// Where a batch of GPU tensors stands in the order of the GPU's streams.
struct StreamPosition {
  int device = kHostDevice;     // this rank's GPU; kHostDevice if this rank has none in the batch
  std::vector<EventPtr> after;  // what has to come first
  std::int64_t bytes = 0;       // as in the query
};

// Is this one of the verbs below?
inline bool moves_data(Verb verb) { return verb <= Verb::kReducescatter; }

class DataPlane {
 public:
  virtual ~DataPlane() = default;
  virtual std::string_view name() const = 0;
  // The name, for statistics, of what carried the last batch: of a part, if the plane leaves batches to its parts.
  virtual std::string_view carrier() const { return name(); }
  virtual bool supports(const PlaneQuery& query) const = 0;
  // Does a rank wake the others (Transport::wake) whenever one of them could go on? Otherwise they have to look.
  virtual bool wakes() const { return false; }

  // Planes for GPUs: begin() comes before the verbs of a batch. A verb ends when all is queued; end() is the point at
  // which the results are there. Between the two, stream() is where the results are written.
  virtual void begin(const StreamPosition& position) { static_cast<void>(position); }
  virtual EventPtr end() { return nullptr; }
  virtual Stream stream() const { return nullptr; }
  // Throws what has gone wrong with work that was queued. True while some of it is unfinished: to be asked again.
  virtual bool watch() { return false; }
  // The job has failed: nothing that was queued may wait for other ranks any longer.
  virtual void abort() {}

  // The segments are one batch: small ones share messages.
  virtual Task allreduce(Reduction reduction, std::span<const Segment> segments) = 0;
  // A plan barrier and then, unless a rank departs from the plan, an allreduce. A rank that departs gives no segments.
  // Host only.
  virtual Task allreduce_behind_barrier(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments);
  // Segments of `element_size` bytes an element; in is read on the root, out written everywhere else; on GPUs on the
  // root as well.
  virtual Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) = 0;
  virtual Task allgather(std::size_t element_size, const Spread& spread) = 0;
  virtual Task reducescatter(Reduction reduction, const Spread& spread) = 0;
  virtual Task alltoall(std::size_t element_size, const Exchange& exchange) = 0;
};

}  // namespace sirtaki
