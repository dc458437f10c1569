// How a group follows a locked plan and leaves it. docs/locked_plan.md is the protocol, with why it is safe.
#include "engine/group.h"

namespace sirtaki {
// Begins the next batch if this rank has all of it, or leaves the plan if it cannot go on.
bool Group::follow_plan(bool awaited) {
  if (!plan_) return false;
  const bool begins = !meeting() && plan_->complete();
  if (begins) {
    const PlanBarrier meeting(false, plan_->position());
    lane_.add(meeting, plan_->take(Clock::now()));
  }
  const bool lacks = plan_->holds_anything() && !plan_->complete();
  if (meeting() || !lacks || !(awaited || plan_->overdue(Clock::now()))) return begins;
  depart();
  return true;
}

void Group::on_met(const PlanBarrier& meeting, Batch& batch) {
  if (batch.empty()) return;  // this rank has departed
  if (meeting.called_off()) return end_plan(std::exchange(batch, {}));
  if (coordinator_) coordinator_->plan_moved();
  plan_->went_on(Clock::now());
  ++statistics_.batches;
  ++statistics_.planned_batches;
  for (const BatchItem& item : batch) count(item.agreement->request);
  if (std::exchange(departing_, false)) depart();
}

// Leaves the plan, at the next batch that this rank has not come to yet, where the others learn of it. What it holds
// for that and later ones is voted for at once; the others do so when they reach the batch.
void Group::depart() {
  if (!plan_) return;
  if (meeting()) {
    departing_ = true;
    for (Submission& submission : plan_->release()) vote(std::move(submission));
    return;
  }
  if (!options_.leaves_plans_silently) lane_.add(PlanBarrier(true, plan_->position()), {});
  end_plan();
}

void Group::end_plan(Batch called_off) {
  ++statistics_.departures;
  std::vector<Submission> held = plan_->release();
  if (coordinator_) coordinator_->plan_ended(plan_->cycles());
  plan_.reset();
  departing_ = false;
  for (BatchItem& item : called_off) vote(std::move(*item.submission));
  for (Submission& submission : held) vote(std::move(submission));
  for (Submission& submission : std::exchange(late_joins_, {})) vote(std::move(submission));
}

void Group::lock_plan(const std::vector<std::vector<CacheSlot>>& slots) {
  LockedPlan::Batches batches;
  for (const std::vector<CacheSlot>& slots_of_batch : slots) {
    auto& batch = batches.emplace_back();
    for (const CacheSlot slot : slots_of_batch) {
      batch.push_back(cache_.at(slot));
      if (batch.back()->request.verb == Verb::kAllreduce) continue;
      throw Error(ErrorKind::kAborted, "a plan holds something else than allreduces; please report this as a bug");
    }
  }
  plan_.emplace(batches, transport_->size(), Clock::now());
  ++statistics_.plans;
  // This rank has said so before it knew of the plan.
  if (leaving_ || !joins_.empty()) depart();
}

void Group::set_fusion_threshold(std::int64_t bytes) {
  if (std::exchange(fusion_threshold_, bytes) != bytes && coordinator_) depart();
}

}  // namespace sirtaki
