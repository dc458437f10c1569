#include "locked_plan/locked_plan.h"

#include <algorithm>

#include "agreement/agreement.h"

namespace sirtaki {
namespace {

// Leaving a plan costs little, and a new plan follows if that was not necessary. So this only has to be longer than a
// rank's usual pause between two gradients.
constexpr std::chrono::seconds kPatience{1};
constexpr int kPatienceInSteps = 4;

// Ignores the call site, which does not matter, and numbers of unnamed requests, which no plan has.
bool same_but_tensors(const Request& a, const Request& b) {
  return a.verb == b.verb && a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale && a.root == b.root;
}

}  // namespace

LockedPlan::LockedPlan(const Batches& batches, int rank, int size, Clock::time_point now)
    : rank_(rank), size_(size), made_(now), moved_(now) {
  for (const auto& agreements : batches) {
    auto& batch = batches_.emplace_back();
    for (const auto& agreement : agreements) {
      by_name_[agreement->request.name] = members_.size();
      batch.push_back(members_.size());
      members_.push_back({agreement, batches_.size() - 1, false, std::nullopt});
    }
    missing_.push_back(batch.size());
  }
  unplanned_ = members_.size();
}

void LockedPlan::negotiated(const std::string& name, Clock::time_point now) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end() || std::exchange(members_[found->second].planned, true)) return;
  if (--unplanned_ == 0) step_ = now - made_;
}

LockedPlan::Answer LockedPlan::offer(Submission& submission, Clock::time_point now) {
  const Request& request = submission.request;
  if (request.sequence != 0) return Answer::kVote;
  const auto found = by_name_.find(request.name);
  if (found == by_name_.end()) return Answer::kVote;
  Member& member = members_[found->second];
  if (!member.planned) return Answer::kVote;
  if (!same_but_tensors(member.agreement->request, request) || !has_part_of(*member.agreement, request, rank_, size_))
    return Answer::kDiffers;
  member.held.emplace(std::move(submission));
  --missing_[member.batch];
  ++held_;
  moved_ = now;
  return Answer::kHeld;
}

Batch LockedPlan::take(Clock::time_point now) {
  Batch batch;
  for (const std::size_t index : batches_[cursor_]) {
    Member& member = members_[index];
    batch.push_back({member.agreement, size_, std::move(member.held)});
    member.held.reset();
  }
  missing_[cursor_] = batch.size();
  held_ -= batch.size();
  cursor_ = (cursor_ + 1) % batches_.size();
  ++position_;
  moved_ = now;
  return batch;
}

bool LockedPlan::overdue(Clock::time_point now) const { return idle(now) > kPatience + kPatienceInSteps * step_; }

std::vector<StandingWait> LockedPlan::waits() const {
  std::vector<StandingWait> result;
  for (const Member& member : members_) {
    if (member.held) result.push_back({member.held->request.title(), member.held->request.site});
  }
  return result;
}

void LockedPlan::for_each_held(const std::function<void(const Submission&)>& call) const {
  for (const Member& member : members_) {
    if (member.held) call(*member.held);
  }
}

std::vector<Submission> LockedPlan::release() {
  std::vector<Submission> result;
  for (Member& member : members_) {
    if (!member.held) continue;
    result.push_back(std::move(*member.held));
    member.held.reset();
    ++missing_[member.batch];
    --held_;
  }
  return result;
}

}  // namespace sirtaki
