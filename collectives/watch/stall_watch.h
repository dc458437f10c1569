// Looks at what waits for missing ranks: first tells, again and again, then ends the job. Runs on the coordinator only,
// which alone sees all ranks. Pure logic over times that are passed in.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/coordinator.h"

namespace sirtaki {

class StallWatch {
 public:
  StallWatch(std::vector<int> global_ranks, std::vector<std::string> hosts, const Settings& settings);

  struct Report {
    std::vector<std::string> lines;  // for people, one line each
    std::vector<int> ask;            // ranks within the group who are to say how they stand before the job ends
    std::string abort_cause;         // not empty: end the job
    int missing = -1;                // then the rank within the group that is blamed
    std::string site;                // where it waits for something else; empty if it does not
  };
  // "'x' lacks rank 1 for 3.2 s; ..."; a line each, indented.
  std::string list_missing(const std::vector<Waiting>& waiting, Clock::time_point now) const;
  // Something was told late and has not been told to go on.
  bool has_warned() const { return !warned_.empty(); }
  Report look(const Coordinator& coordinator, Clock::time_point now);

 private:
  // By which to say who is missing.
  static const Waiting& clearest_of(const std::vector<Waiting>& waiting, Clock::time_point now);
  void warn(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report);
  void tell_resumed(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report);
  std::string describe(const Coordinator& coordinator, const std::vector<Waiting>& waiting,
                       Clock::time_point now) const;
  std::string describe_rank(int rank, const std::vector<Waiting>& waiting, Clock::time_point now) const;
  std::string late(const Waiting& entry) const;
  std::string list(const std::vector<int>& ranks) const;

  std::vector<int> global_ranks_;
  std::vector<std::string> hosts_;
  double warning_seconds_;
  double abort_seconds_;
  Clock::time_point last_warning_;
  std::map<std::string, Clock::time_point> warned_;  // titles, since when they wait
  std::optional<Clock::time_point> asked_at_;
  std::vector<int> asked_;
};

}  // namespace sirtaki
