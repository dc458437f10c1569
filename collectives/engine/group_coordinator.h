// Rank 0's additional part of a group: receives what the members announce, decides, and looks after stalls and requests
// for the job's status. Pure logic over times that are passed in.
#pragma once

#include <string>
#include <vector>

#include "coordinator/coordinator.h"
#include "watch/job_status.h"
#include "watch/stall_watch.h"

namespace sirtaki {

class GroupCoordinator {
 public:
  // `ranks` (global) and `hosts`: of the members, by rank in the group.
  GroupCoordinator(std::vector<int> ranks, std::vector<std::string> hosts, const Settings& settings);

  void receive(int from, Announcement announcement, Clock::time_point now) {
    coordinator_.receive(from, std::move(announcement), now);
  }
  // As Coordinator::decide() has it.
  Verdict decide(bool planes_busy, bool may_plan) {
    return coordinator_.decide(planes_busy, fusion_threshold_, may_plan);
  }
  bool has_pending() const { return coordinator_.has_pending(); }
  bool fails() const { return coordinator_.fails(); }

  bool has_to_watch() const { return has_pending() || stalls_.has_warned(); }
  // To be called often while has_to_watch(). Gives lines for people: stalls, and their end.
  std::vector<std::string> watch(Clock::time_point now);
  // As StallWatch::list_missing() has it.
  std::string list_missing(Clock::time_point now) const { return stalls_.list_missing(coordinator_.waiting(), now); }

  void on_plan_batch_done() { coordinator_.plan_moved(); }
  void on_plan_ended(std::uint64_t steps) { coordinator_.plan_ended(steps); }
  // True if it is a new one. Then a locked plan no longer fits.
  bool set_fusion_threshold(std::int64_t bytes) { return std::exchange(fusion_threshold_, bytes) != bytes; }

 private:
  std::vector<int> ranks_;
  std::vector<std::string> hosts_;
  Coordinator coordinator_;
  StallWatch stalls_;
  JobStatus job_status_;
  std::int64_t fusion_threshold_;
  Clock::time_point next_look_;
};

}  // namespace sirtaki
