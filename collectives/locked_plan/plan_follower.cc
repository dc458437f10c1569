#include "locked_plan/plan_follower.h"

namespace sirtaki {

PlanFollower::PlanFollower(int group, int rank, int size, PlanChannel channel, PlanOwner& owner,
                           const Observers& observers)
    : group_(group),
      size_(size),
      fabric_(std::move(channel.fabric)),
      has_planes_(!channel.planes.empty()),
      global_rank_(channel.global_rank),
      clock_offset_(channel.clock_offset),
      owner_(owner),
      observers_(observers),
      executor_(
          rank, size, std::move(channel.planes),
          [this](Submission& submission, Result result, const Error* error) {
            owner_.deliver(submission, std::move(result), error);
          },
          observers) {}

bool PlanFollower::take(Submission& submission) {
  if (!plan_) return false;
  const LockedPlan::Answer answer = plan_->offer(submission, Clock::now());
  if (answer == LockedPlan::Answer::kHeld) return true;
  const bool joins = submission.request.verb == Verb::kJoin;
  if (answer == LockedPlan::Answer::kDiffers || joins) depart();
  if (!plan_ || !joins) return false;
  late_joins_.push_back(std::move(submission));
  return true;
}

void PlanFollower::on_agreed(const std::string& name) {
  if (plan_) plan_->negotiated(name, Clock::now());
}

void PlanFollower::lock(const LockedPlan::Batches& batches) {
  for (const auto& batch : batches) {
    for (const auto& agreement : batch) {
      if (agreement->request.verb == Verb::kAllreduce) continue;
      throw Error(ErrorKind::kAborted, "a plan holds something else than allreduces; please report this as a bug");
    }
  }
  plan_.emplace(batches, size_, Clock::now());
  observers_.announce(&Observer::on_plan_locked, group_);
}

bool PlanFollower::progress(bool awaited) {
  const bool followed = follow(awaited);
  const bool had_batch = busy();
  const bool moved = executor_.progress();
  if (had_batch && !busy()) finish_barrier();
  return followed || moved;
}

bool PlanFollower::follow(bool awaited) {
  if (!plan_) return false;
  const bool begins = !busy() && plan_->complete();
  if (begins) {
    const auto now = Clock::now();
    const PlanBarrier barrier(false, plan_->position(), {global_rank_, clock_offset_, now});
    Batch batch = plan_->take(now);
    const BatchEvent event = event_of(batch, group_, true, batches_done_ + 1);
    executor_.add(std::move(batch), event, barrier);
  }
  const bool lacks = plan_->holds_anything() && !plan_->complete();
  if (busy() || !lacks || !(awaited || plan_->overdue(Clock::now()))) return begins;
  depart();
  return true;
}

// A batch has finished, or was called off at its barrier.
void PlanFollower::finish_barrier() {
  Batch called_off = executor_.take_called_off();
  if (!plan_) return;  // this rank departed at that barrier
  if (!called_off.empty()) return end_plan(std::move(called_off));
  ++batches_done_;
  plan_->went_on(Clock::now());
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
  executor_.add({}, {}, PlanBarrier(true, plan_->position()));
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
    for (Submission& submission : plan_->release()) owner_.deliver(submission, Result(), &error);
  }
  for (Submission& submission : std::exchange(late_joins_, {})) owner_.deliver(submission, Result(), &error);
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
