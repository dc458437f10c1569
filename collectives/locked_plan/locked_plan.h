// A step that the ranks have agreed on for good: its batches, in order, again and again. From then on a rank begins a
// batch as soon as its own tensors for it are there, without a word to the coordinator. docs/locked_plan.md says how
// ranks come to a plan, how they leave it together, and why that is safe.
//
// This is a rank's own part, without messages: which tensors it holds, and which batch is next. Engine's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agreement/messages.h"
#include "base/clock.h"
#include "execution/executor.h"
#include "queue/submission.h"

namespace sirtaki {

class LockedPlan {
 public:
  using Batches = std::vector<std::vector<std::shared_ptr<const Agreement>>>;

  // `size`: ranks, all of which contribute to every batch.
  LockedPlan(const Batches& batches, int size, Clock::time_point now);

  // A use of this name was agreed on by votes. Each name has one more such use after the plan was made, on every rank
  // the same; the next one is the plan's.
  void negotiated(const std::string& name, Clock::time_point now);

  // Takes what is the plan's to run. kVote: it is not, or not yet. kDiffers: the name is, but not as agreed.
  enum class Answer { kVote, kHeld, kDiffers };
  Answer offer(Submission& submission, Clock::time_point now);

  // Has this rank all tensors of the next batch?
  bool complete() const { return missing_[cursor_] == 0; }
  // Gives the next batch and goes on to the one after it.
  Batch take(Clock::time_point now);

  bool holds_anything() const { return held_ > 0; }
  // No tensor has come for so long that the missing ones of the next batch may never come.
  bool overdue(Clock::time_point now) const;
  // How long nothing has moved.
  Clock::duration idle(Clock::time_point now) const { return now - moved_; }
  std::vector<StandingWait> waits() const;
  void went_on(Clock::time_point now) { moved_ = now; }

  void for_each_held(const std::function<void(const Submission&)>& call) const;

  // What is held, to be voted for.
  std::vector<Submission> release();

  // Counts the batches that were begun; equal on ranks that meet.
  std::uint64_t position() const { return position_; }
  std::uint64_t cycles() const { return position_ / batches_.size(); }

 private:
  struct Member {
    std::shared_ptr<const Agreement> agreement;
    std::size_t batch;
    bool planned = false;
    std::optional<Submission> held;
  };

  int size_;
  std::vector<Member> members_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::vector<std::vector<std::size_t>> batches_;  // indices of members
  std::vector<std::size_t> missing_;               // of each batch, members not held
  std::size_t unplanned_;                          // members whose last negotiated use is still to come
  std::size_t held_ = 0;
  std::size_t cursor_ = 0;
  std::uint64_t position_ = 0;
  Clock::time_point made_;
  Clock::time_point moved_;
  Clock::duration step_{};  // about as long as a step takes
};

}  // namespace sirtaki
