// How a group follows a locked plan and leaves it. docs/locked_plan.md is the protocol, with why it is safe.
#include <tuple>

#include "error.h"
#include "group.h"

namespace sirtaki {
namespace {

// What every rank says when it has reached a batch; the greatest of each word comes back. The last two show whether all
// are at the same batch, which they are unless this file is wrong.
enum Word : std::size_t { kDeparts, kPosition, kPositionBackward, kWords };

std::shared_ptr<const Agreement> meeting_agreement() {
  auto agreement = std::make_shared<Agreement>();
  agreement->request.op = ReduceOp::kMax;
  agreement->request.tensors = {{DType::kUint64, kHostDevice, {kWords}}};
  return agreement;
}

}  // namespace

// Nobody waits for one.
bool Group::is_meeting(const Submission& submission) { return submission.work == nullptr; }

// Begins the next batch if this rank has all of it, or leaves the plan if it cannot go on.
bool Group::follow_plan(bool awaited) {
  if (!plan_) return false;
  const bool begins = !meeting() && plan_->complete();
  if (begins) meet(false);
  const bool lacks = plan_->holds_anything() && !plan_->complete();
  if (meeting() || !lacks || !(awaited || plan_->overdue(Clock::now()))) return begins;
  depart();
  return true;
}

// Says what this rank has come to; the others say so at the same batch.
void Group::meet(bool departs) {
  static const std::shared_ptr<const Agreement> agreement = meeting_agreement();
  static_assert(std::tuple_size_v<MeetingWords> == kWords);
  const std::uint64_t position = plan_->position();
  const auto words = std::make_shared<MeetingWords>(MeetingWords{departs ? std::uint64_t{1} : 0, position, ~position});
  meetings_.push_back({words, departs});
  // What is passed as `allocate` is never called; it keeps the words as long as the planes may write there.
  Submission submission(Request(), {{words->data(), words->data()}}, nullptr,
                        [words](std::size_t, const Shape&, Stream) { return words->data(); });
  Batch batch;
  batch.push_back({agreement, transport_->size(), std::move(submission)});
  lane_.add(std::move(batch));
}

void Group::on_met(const Error* error) {
  if (error != nullptr) return;  // the job has failed
  const Meeting met = std::move(meetings_.front());
  meetings_.pop_front();
  if ((*met.words)[kPosition] != ~(*met.words)[kPositionBackward]) {
    throw Error(ErrorKind::kAborted,
                "the ranks are at different batches of their locked plan; please report this as a bug");
  }
  if (met.departs) return;
  if ((*met.words)[kDeparts] != 0) return end_plan();
  if (coordinator_) coordinator_->plan_moved();
  Batch batch = plan_->take(Clock::now());
  ++statistics_.batches;
  ++statistics_.planned_batches;
  for (const BatchItem& item : batch) count(item.agreement->request);
  lane_.add(std::move(batch));
  if (std::exchange(departing_, false)) depart();
}

// Leaves the plan, at the next batch that this rank has not reached yet. What it holds for that and later ones is voted
// for at once; the others do so when they reach the batch.
void Group::depart() {
  if (!plan_) return;
  if (meeting()) {
    departing_ = true;
    for (Submission& submission : plan_->release(true)) vote(std::move(submission));
    return;
  }
  if (!options_.leaves_plans_silently) meet(true);
  end_plan();
}

void Group::end_plan() {
  ++statistics_.departures;
  std::vector<Submission> held = plan_->release(false);
  if (coordinator_) coordinator_->plan_ended(plan_->cycles());
  plan_.reset();
  departing_ = false;
  for (Submission& submission : held) vote(std::move(submission));
  for (Submission& submission : std::exchange(late_joins_, {})) vote(std::move(submission));
}

void Group::lock_plan(const std::vector<std::vector<Slot>>& slots) {
  LockedPlan::Batches batches;
  for (const std::vector<Slot>& slots_of_batch : slots) {
    auto& batch = batches.emplace_back();
    for (const Slot slot : slots_of_batch) batch.push_back(cache_.at(slot));
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
