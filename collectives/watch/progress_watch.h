// Runs on each rank and notices that nothing moves. It lists requests that make no progress, for the coordinator, and
// checks that the coordinator still sends. Pure logic; the time is an argument.
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
  // A request may make no progress for so long before this rank informs the coordinator.
  static constexpr std::chrono::seconds kPatience{1};

  // `rank`: in the group. `ranks`, `hosts`: of the members, by rank in the group.
  ProgressWatch(int rank, std::vector<int> ranks, std::vector<std::string> hosts, const Settings& settings);

  void on_data_moved() { data_moved_ = true; }
  void on_verdict() { verdict_came_ = true; }

  // No data has moved during the last kPatience.
  bool data_stands_still(Clock::time_point now);
  // `waits`: the requests that make no progress now. Returns the list to send, if it has changed since the last call.
  std::optional<std::vector<StandingWait>> changed(std::vector<StandingWait> waits);
  // The last list sent to the coordinator was not empty. So check again as soon as anything moves.
  bool has_reported() const { return !reported_.empty(); }

  // Called from time to time, except on the coordinator's rank. `waits`: this rank needs a verdict or data to continue.
  // True if the coordinator must be asked for a heartbeat. Throws JobFailure if it has not sent one in time.
  bool must_ask_coordinator(bool waits, Clock::time_point now);
  // Called after must_ask_coordinator(). A warning that the coordinator does not answer; "" if none is due. Only the
  // group's rank 1 warns, so that there is one line.
  std::string warning(Clock::time_point now);

 private:
  // A living coordinator answers sooner.
  static constexpr std::chrono::seconds kAnswer{1};

  [[noreturn]] void fail(Clock::duration silence) const;
  std::string coordinator() const;

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
  Clock::time_point warn_at_;
};

}  // namespace sirtaki
