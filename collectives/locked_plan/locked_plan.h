// The batches of a step that repeats: all ranks have agreed to run them in this order, again and again. A rank begins a
// batch as soon as it has its own tensors for it, without any message to the coordinator. docs/locked_plan.md says how
// ranks make a plan, how they leave it together, and why that is safe.
//
// This class sends no messages. It knows this rank's tensors and the next batch. Engine's thread only.
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

  // `size`: number of ranks. All of them contribute to every batch.
  LockedPlan(const Batches& batches, int size, Clock::time_point now);

  // The ranks have agreed by votes on a request of this name. After the plan was made, each name is voted for once
  // more, on every rank. The plan runs the requests after that.
  void negotiated(const std::string& name, Clock::time_point now);

  // Takes a submission that the plan must run (kHeld). kVote: the plan does not, or not yet, run it. kDiffers: the plan
  // has this name, but with another request.
  enum class Answer { kVote, kHeld, kDiffers };
  Answer offer(Submission& submission, Clock::time_point now);

  // Has this rank all tensors of the next batch?
  bool complete() const { return missing_[cursor_] == 0; }
  // Returns the next batch and moves on to the one after it.
  Batch take(Clock::time_point now);

  bool holds_anything() const { return held_ > 0; }
  // No tensor has come for so long that the missing tensors of the next batch may never come.
  bool overdue(Clock::time_point now) const;
  // Time since the plan last moved.
  Clock::duration idle(Clock::time_point now) const { return now - moved_; }
  std::vector<StandingWait> waits() const;
  void note_progress(Clock::time_point now) { moved_ = now; }

  void for_each_held(const std::function<void(const Submission&)>& call) const;

  // Gives up the submissions that are held; the caller votes for them.
  std::vector<Submission> release();

  // Number of batches that were begun. Equal on all ranks at a barrier.
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
  std::size_t unplanned_;                          // members that are still to be voted for once more
  std::size_t held_ = 0;
  std::size_t cursor_ = 0;
  std::uint64_t position_ = 0;
  Clock::time_point made_;
  Clock::time_point moved_;
  Clock::duration step_{};  // about the duration of a step
};

}  // namespace sirtaki
