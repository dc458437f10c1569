// Checks requests that wait for missing ranks: it first warns, repeatedly, then ends the job. Runs only on the
// coordinator, since only the coordinator knows all votes. Pure logic; the time is an argument.
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
    std::vector<int> ask;            // ranks of the group that must send their status before the job ends
    std::string abort_cause;         // not empty: end the job
    int missing = -1;                // with abort_cause: the rank of the group that caused it
    std::string site;                // where that rank waits for another request; empty if it does not
  };
  // "'x' lacks rank 1 for 3.2 s; ...": one indented line for each request.
  std::string list_missing(const std::vector<Waiting>& waiting, Clock::time_point now) const;
  // It has warned of a request and not yet reported that the request moves again.
  bool has_warned() const { return !warned_.empty(); }
  Report look(const Coordinator& coordinator, Clock::time_point now);

 private:
  // The request that shows best which rank is missing.
  static const Waiting& best_explained(const std::vector<Waiting>& waiting, Clock::time_point now);
  void warn(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report);
  void report_resumed(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report);
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
  std::map<std::string, Clock::time_point> warned_;  // by title: since when the request waits
  std::optional<Clock::time_point> asked_at_;
  std::vector<int> asked_;
};

}  // namespace sirtaki
