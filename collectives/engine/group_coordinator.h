// Rank 0's additional part of a group: receives the members' announcements, decides, watches for stalls, and handles
// requests for the job's status. Pure logic; the time is an argument.
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
  // See Coordinator::decide().
  Verdict decide(bool planes_busy, bool may_plan) {
    return coordinator_.decide(planes_busy, fusion_threshold_, may_plan);
  }
  bool has_pending() const { return coordinator_.has_pending(); }
  bool fails() const { return coordinator_.fails(); }

  bool has_to_watch() const { return has_pending() || stalls_.has_warned(); }
  // Call it often while has_to_watch(). Returns lines for people: stalls, and their end.
  std::vector<std::string> watch(Clock::time_point now);
  // See StallWatch::list_missing().
  std::string list_missing(Clock::time_point now) const { return stalls_.list_missing(coordinator_.waiting(), now); }

  void on_plan_batch_done() { coordinator_.plan_moved(); }
  void on_plan_ended(std::uint64_t steps) { coordinator_.plan_ended(steps); }
  // True if the threshold has changed. Then a locked plan no longer fits.
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
