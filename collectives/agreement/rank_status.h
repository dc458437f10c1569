// The status of one rank as text for people: collectives that it waits for, and the stacks of its Python threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/types.h"

namespace sirtaki {

// Sent by a rank when the coordinator asks for its status.
struct RankStatus {
  std::string doing;   // the last finished collective and the pending ones; its first line follows the rank's name
  std::string stacks;  // stacks of the rank's Python threads
  bool operator==(const RankStatus&) const = default;
};

// A collective that a rank has submitted and that has not finished.
struct PendingCall {
  std::string title;
  Verb verb;
  std::string site;
  Clock::time_point since;
  std::string_view state;
};

std::string seconds_since(Clock::time_point since, Clock::time_point now);  // "3.2 s"
// Indented lines, the oldest call first; "" if there are no pending calls.
std::string list_pending(std::vector<PendingCall> pending, Clock::time_point now);
// "rank 2 on host b", followed by that rank's status.
std::string section_of(int rank, const std::string& host, const RankStatus& report);

}  // namespace sirtaki
