// Runs the agreed batches of one group, one after the other, and completes their works. Engine's thread only.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "base/task.h"
#include "observer/observer.h"
#include "plane/plan_barrier.h"
#include "plane/plane_choice.h"
#include "queue/submission.h"

namespace sirtaki {

// One agreed request. A rank that has joined has no submission for it, and contributes neutral elements.
struct BatchItem {
  std::shared_ptr<const Agreement> agreement;
  int contributors = 0;
  std::optional<Submission> submission;
  std::uint64_t sequence = 0;  // of the request, equal on all ranks
};
using Batch = std::vector<BatchItem>;

// Gets each submission when it is over.
class SubmissionOwner {
 public:
  // The submission has succeeded, or has failed if there is an error.
  virtual void on_finished(int group, Submission& submission, Result result, const Error* error) = 0;

 protected:
  ~SubmissionOwner() = default;
};

class Executor final : private Task::Watcher {
 public:
  // `group`: number of the group. `rank` and `size`: in the group.
  Executor(int group, int rank, int size, DataPlanes planes, SubmissionOwner& owner, const Observers& observers);

  // Queues a batch that was voted for. `arrival`: when all ranks had voted, for observers.
  void add(Batch batch, const Arrival& arrival);
  // Queues a batch of a plan: host tensors only. It runs only if no rank departs at the barrier. A rank that departs
  // adds an empty batch.
  void add(Batch batch, const PlanBarrier& barrier);
  bool busy() const { return !batches_.empty(); }
  // The running batch waits at its barrier for other ranks.
  bool at_barrier() const;
  // The last batch, if it was called off at its barrier: its submissions are not over.
  Batch take_called_off() { return std::exchange(called_off_, {}); }
  // The requests of the running batch, and where this rank made them.
  std::vector<StandingWait> running() const;
  // Calls `call` for every submission, with whether its batch is running.
  void for_each(const std::function<void(const Submission&, bool running)>& call) const;
  // Is this rank woken when another rank has moved the running batch on?
  bool wakes() const { return plane_ == nullptr || plane_->wakes(); }
  // A plane has unfinished queued work. progress() checks it from time to time.
  bool watching() const { return watching_; }

  // True if data moved. If the planes refuse a batch, they do so on all ranks, and its works get the error. Any other
  // error leaves the ranks in different states, so it is thrown. The caller then fails all works by abort().
  bool progress();

  void abort(const Error& error);

 private:
  struct Entry {
    Batch batch;
    BatchEvent event;
    std::optional<PlanBarrier> barrier;
  };
  // Tensors of one kind go into one call of a plane.
  struct Kind {
    DType dtype;
    int device;
    int contributors;
    auto operator<=>(const Kind&) const = default;
  };
  using Kinds = std::map<Kind, std::vector<Segment>>;

  Task run(Batch& batch);
  Task run_behind_barrier(Batch& batch, PlanBarrier& barrier);
  Task allreduce(Batch& batch);
  Task allreduce(const Request& request, const Kinds& kinds);
  Kinds kinds_of(Batch& batch);
  Task broadcast(Batch& batch);
  Task allgather(BatchItem& item);
  Task reducescatter(BatchItem& item);
  Task alltoall(BatchItem& item);

  // For the running task.
  void on_suspended() override { announce_wire(&Observer::on_wire_begun); }
  void on_resumed() override { announce_wire(&Observer::on_wire_ended); }
  void announce_wire(void (Observer::*station)(const BatchEvent&)) const;
  void announce_queueing(void (Observer::*station)(const BatchEvent&, Device&, Stream)) const;

  DataPlane& choose_plane(const PlaneQuery& query);
  static StreamPosition position_of(const Batch& batch, std::int64_t bytes);
  Result& result_of(const BatchItem& item);
  void* output(BatchItem& item, std::size_t tensor, Shape shape);
  void finish_transfer();
  void finish_batch(const Error* refused);
  void check_queued_work();
  BatchEvent next_event(const Batch& batch, bool planned);

  int group_;
  int rank_;
  int size_;
  DataPlanes planes_;
  SubmissionOwner& owner_;
  const Observers& observers_;
  std::deque<Entry> batches_;  // the first is running
  std::uint64_t number_ = 0;   // of the last batch that was added
  std::optional<Task> running_;
  std::vector<Result> results_;  // of the running batch, by item
  Batch called_off_;
  DataPlane* plane_ = nullptr;  // carries the running batch
  bool watching_ = false;
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace sirtaki
