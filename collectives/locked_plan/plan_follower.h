// Follows the locked plan of a group on one rank: holds the tensors of the next batches, runs each batch behind its
// barrier, and leaves the plan together with the other ranks. docs/locked_plan.md is the protocol, with the reasons why
// it is safe. Engine's thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "execution/executor.h"
#include "fabric/fabric.h"
#include "locked_plan/locked_plan.h"
#include "observer/observer.h"

namespace sirtaki {

// Planned batches have their own planes, since they have no fixed order relative to batches that were voted for.
// Without planes there are no plans. The planes use the fabric, so they are destroyed first.
struct PlanChannel {
  std::unique_ptr<Fabric> fabric;
  DataPlanes planes;
};

class PlanOwner {
 public:
  // The plan will not run this submission: vote for it.
  virtual void vote(Submission submission) = 0;
  virtual void on_plan_batch_done() = 0;
  // All ranks leave the plan, after this number of steps.
  virtual void on_plan_ended(std::uint64_t steps) = 0;

 protected:
  ~PlanOwner() = default;
};

class PlanFollower {
 public:
  // `rank` and `size`: in the group.
  PlanFollower(int group, int rank, int size, PlanChannel channel, PlanOwner& owner, SubmissionOwner& submission_owner,
               const Observers& observers);

  // Holds the submission if the plan runs it, and begins the next batch if that is complete now. Holds also a join,
  // until this rank has left the plan. Votes for any other submission.
  void submit(Submission submission);
  // The ranks have agreed on this name by votes.
  void on_agreed(const std::string& name);
  // Follows this plan from now on. Needs may_lock(), and no plan.
  void lock(const LockedPlan::Batches& batches);
  // Leaves the plan at the next barrier that this rank has not entered. That barrier informs the other ranks.
  void depart();

  // Begins the next batch if this rank has all its tensors, moves the running one, or leaves the plan if this rank
  // cannot continue. `awaited`: a thread of this process waits, so it submits nothing more for now. True if anything
  // moved.
  bool progress(bool awaited);
  void fail_all(const Error& error);

  bool follows() const { return plan_.has_value(); }
  // No batch is between its barrier and its end, so a new plan can replace the old one.
  bool may_lock() const { return has_planes_ && !busy(); }
  bool busy() const { return executor_.busy(); }
  bool moving_data() const { return busy() && !executor_.at_barrier(); }
  bool active() const { return busy() || (plan_ && plan_->holds_anything()); }
  bool wakes() const { return executor_.wakes(); }
  bool watching() const { return executor_.watching(); }

  // The requests that this rank holds, if no tensor of the plan was submitted for `patience`.
  std::vector<StandingWait> list_held(Clock::time_point now, Clock::duration patience) const;
  // Requests of the running batch.
  std::vector<StandingWait> list_running() const { return executor_.running(); }
  void for_each(const std::function<void(const Submission&, std::string_view state)>& call) const;

 private:
  bool must_depart(bool awaited) const;
  void finish_barrier();
  void end_plan(Batch called_off);

  int group_;
  int size_;
  std::unique_ptr<Fabric> fabric_;
  bool has_planes_;
  PlanOwner& owner_;
  SubmissionOwner& submission_owner_;
  const Observers& observers_;
  Executor executor_;  // has at most one batch
  std::optional<LockedPlan> plan_;
  bool moved_ = false;                  // in submit(), since the last progress()
  bool departing_ = false;              // at the next barrier, since this rank has entered one already
  std::vector<Submission> late_joins_;  // voted for last, since a vote for a join counts as a vote for every request
};

}  // namespace sirtaki
