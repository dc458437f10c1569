// Notices on each rank that nothing moves: which requests stand still, of which the coordinator must learn, and whether
// the coordinator itself is silent. Pure logic over times that are passed in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agreement/messages.h"
#include "base/clock.h"
#include "base/settings.h"

namespace sirtaki {

class ProgressWatch {
 public:
  // A request may stand still for so long before the coordinator is informed.
  static constexpr std::chrono::seconds kPatience{1};

  // `rank`: in the group. `ranks`, `hosts`: of the members, by rank in the group.
  ProgressWatch(int rank, std::vector<int> ranks, std::vector<std::string> hosts, const Settings& settings);

  void on_data_moved() { data_moved_ = true; }
  void on_verdict() { verdict_came_ = true; }

  // No data has moved between the looks of the last kPatience.
  bool data_stands_still(Clock::time_point now);
  // `waits`: the requests that stand still now. If they have changed since the last call, the list to send.
  std::optional<std::vector<StandingWait>> changed(std::vector<StandingWait> waits);
  // The coordinator believes that requests stand still here. So look again as soon as anything moves.
  bool has_reported() const { return !reported_.empty(); }

  // Now and then, on every rank but the coordinator's. `waits`: this rank needs a verdict or data to go on. True if the
  // coordinator must be asked for a heartbeat. Throws JobFailure if it has not sent one in time.
  bool must_ask_coordinator(bool waits, Clock::time_point now);

 private:
  [[noreturn]] void fail(Clock::duration silence) const;

  int rank_;
  std::vector<int> ranks_;
  std::vector<std::string> hosts_;
  double warning_seconds_;
  double abort_seconds_;
  bool data_moved_ = false;
  bool verdict_came_ = false;
  Clock::time_point still_since_;
  std::vector<StandingWait> reported_;  // to the coordinator
  Clock::time_point silent_since_;
  Clock::time_point last_look_;
  bool asked_ = false;
};

}  // namespace sirtaki
