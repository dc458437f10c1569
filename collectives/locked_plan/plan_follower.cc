#include "locked_plan/plan_follower.h"

namespace sirtaki {

PlanFollower::PlanFollower(int group, int rank, int size, PlanChannel channel, PlanOwner& owner,
                           SubmissionOwner& submission_owner, const Observers& observers)
    : group_(group),
      size_(size),
      fabric_(std::move(channel.fabric)),
      has_planes_(!channel.planes.empty()),
      owner_(owner),
      submission_owner_(submission_owner),
      observers_(observers),
      executor_(group, rank, size, std::move(channel.planes), submission_owner, observers) {}

void PlanFollower::submit(Submission submission) {
  const auto answer = plan_ ? plan_->offer(submission, Clock::now()) : LockedPlan::Answer::kVote;
  if (answer == LockedPlan::Answer::kHeld) {
    if (plan_->complete() && !busy()) moved_ |= progress(false);
    return;
  }
  const bool joins = submission.request.verb == Verb::kJoin;
  if (answer == LockedPlan::Answer::kDiffers || joins) depart();
  if (!plan_ || !joins) return owner_.vote(std::move(submission));
  late_joins_.push_back(std::move(submission));
}

void PlanFollower::on_agreed(const std::string& name) {
  if (plan_) plan_->negotiated(name, Clock::now());
}

void PlanFollower::lock(const LockedPlan::Batches& batches) {
  for (const auto& batch : batches) {
    for (const auto& agreement : batch) {
      if (agreement->request.verb == Verb::kAllreduce) continue;
      throw Error(ErrorKind::kAborted, "a plan contains a request that is no allreduce; please report this as a bug");
    }
  }
  plan_.emplace(batches, size_, Clock::now());
  observers_.announce(&Observer::on_plan_locked, group_);
}

bool PlanFollower::progress(bool awaited) {
  bool moved = std::exchange(moved_, false);
  if (plan_ && plan_->complete() && !busy()) {
    const PlanBarrier barrier(false, plan_->position());
    executor_.add(plan_->take(Clock::now()), barrier);
    moved = true;
  } else if (must_depart(awaited)) {
    depart();
    moved = true;
  }
  const bool had_batch = busy();
  moved |= executor_.progress();
  if (had_batch && !busy()) finish_barrier();
  return moved;
}

// Does this rank lack tensors of the next batch, which may never come?
bool PlanFollower::must_depart(bool awaited) const {
  if (!plan_ || busy() || plan_->complete() || !plan_->holds_anything()) return false;
  return awaited || plan_->overdue(Clock::now());
}

// A batch has finished, or was called off at its barrier.
void PlanFollower::finish_barrier() {
  Batch called_off = executor_.take_called_off();
  if (!plan_) return;  // this rank departed at that barrier
  if (!called_off.empty()) return end_plan(std::move(called_off));
  plan_->note_progress(Clock::now());
  owner_.on_plan_batch_done();
  if (std::exchange(departing_, false)) depart();
}

// Votes at once for the submissions that this rank holds. The other ranks vote for theirs when they reach the barrier.
void PlanFollower::depart() {
  if (!plan_) return;
  if (busy()) {
    departing_ = true;
    for (Submission& submission : plan_->release()) owner_.vote(std::move(submission));
    return;
  }
  executor_.add({}, PlanBarrier(true, plan_->position()));
  end_plan({});
}

void PlanFollower::end_plan(Batch called_off) {
  std::vector<Submission> held = plan_->release();
  const std::uint64_t steps = plan_->cycles();
  plan_.reset();
  departing_ = false;
  observers_.announce(&Observer::on_plan_left, group_);
  owner_.on_plan_ended(steps);
  for (BatchItem& item : called_off) owner_.vote(std::move(*item.submission));
  for (Submission& submission : held) owner_.vote(std::move(submission));
  for (Submission& submission : std::exchange(late_joins_, {})) owner_.vote(std::move(submission));
}

void PlanFollower::fail_all(const Error& error) {
  executor_.abort(error);
  if (plan_) {
    for (Submission& submission : plan_->release()) submission_owner_.on_finished(group_, submission, Result(), &error);
  }
  for (Submission& join : std::exchange(late_joins_, {})) submission_owner_.on_finished(group_, join, Result(), &error);
}

std::vector<StandingWait> PlanFollower::list_held(Clock::time_point now, Clock::duration patience) const {
  if (!plan_ || !plan_->holds_anything() || plan_->idle(now) <= patience) return {};
  return plan_->waits();
}

void PlanFollower::for_each(const std::function<void(const Submission&, std::string_view state)>& call) const {
  for (const Submission& join : late_joins_) call(join, "waits for its turn");
  if (plan_) plan_->for_each_held([&](const Submission& held) { call(held, "waits for the rest of its batch"); });
  executor_.for_each([&](const Submission& running, bool) { call(running, "under way"); });
}

}  // namespace sirtaki
