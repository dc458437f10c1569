// Runs the agreed batches of one group, one after the other, and fulfils their works. Engine's thread only.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "agreement/messages.h"
#include "base/task.h"
#include "plane/plan_barrier.h"
#include "plane/planes.h"
#include "queue/submission.h"

namespace sirtaki {

// One agreed request; without a submission on a rank that has joined, which then contributes what changes nothing.
struct BatchItem {
  std::shared_ptr<const Agreement> agreement;
  int contributors = 0;
  std::optional<Submission> submission;
  std::uint64_t sequence = 0;  // of the ranks' requests
};
using Batch = std::vector<BatchItem>;

class Executor {
 public:
  // Called when a submission is finished (error null) or failed.
  using Deliver = std::function<void(Submission&, Result, const Error*)>;
  // Called when a meeting is over, after its batch unless that was called off; may take items out of the batch, which
  // are then not delivered.
  using Met = std::function<void(const PlanBarrier&, Batch&)>;

  Executor(int rank, int size, DataPlanes planes, Deliver deliver, Met met = nullptr);

  // Calls with every submission here, and whether its batch is running.
  void for_each(const std::function<void(const Submission&, bool running)>& call) const;

  void add(Batch batch) { batches_.push_back({std::move(batch), std::nullopt}); }
  // Allreduces of host tensors, to be run if all ranks come to the meeting; none if this rank calls it off.
  void add(const PlanBarrier& meeting, Batch batch) { batches_.push_back({std::move(batch), meeting}); }
  bool busy() const { return !batches_.empty(); }
  // What the running batch holds, and where this rank asked for it.
  std::vector<StandingWait> running() const;
  // Have others not come yet to the meeting that this rank is at?
  bool at_meeting() const;
  // Will whoever can bring the running batch forward wake this rank?
  bool wakes() const { return plane_ == nullptr || plane_->wakes(); }

  // Has a plane queued work that is unfinished, and that progress() therefore looks after?
  bool watching() const { return watching_; }

  // True if something moved. An error of a batch that the planes refused alike on all ranks is delivered; any other
  // leaves the ranks in different states, so it is thrown, and every work of all batches is failed by abort().
  bool progress();

  void abort(const Error& error);

 private:
  struct Entry {
    Batch batch;
    std::optional<PlanBarrier> meeting;
  };
  // What one call of a plane can take together.
  struct Kind {
    DType dtype;
    int device;
    int contributors;
    auto operator<=>(const Kind&) const = default;
  };
  using Kinds = std::map<Kind, std::vector<Segment>>;

  Task run(Batch& batch);
  Task meet_and_run(Batch& batch, PlanBarrier& meeting);
  Task allreduce(Batch& batch);
  Task allreduce(const Request& request, const Kinds& kinds);
  Kinds kinds_of(Batch& batch);
  Task broadcast(Batch& batch);
  Task allgather(BatchItem& item);
  Task reducescatter(BatchItem& item);
  Task alltoall(BatchItem& item);

  DataPlane& choose_plane(const PlaneQuery& query);
  static StreamPosition position_of(const Batch& batch, std::int64_t bytes);
  void* output(BatchItem& item, std::size_t tensor, Shape shape);
  void look_after_queued();
  void deliver_all(Batch& batch, const Error* error);

  int rank_;
  int size_;
  DataPlanes planes_;
  Deliver deliver_;
  Met met_;
  std::deque<Entry> batches_;  // the first is running
  std::optional<Task> running_;
  std::vector<Result> results_;  // of the running batch, by item
  DataPlane* plane_ = nullptr;   // that the running batch uses
  bool watching_ = false;
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace sirtaki
