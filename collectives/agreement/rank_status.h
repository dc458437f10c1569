// How the ranks of a job stand, for people who ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/types.h"

namespace sirtaki {

// What one rank says of itself.
struct RankStatus {
  std::string doing;   // what it finished last and what is pending; the first line follows the rank's name
  std::string stacks;  // of its Python threads
  bool operator==(const RankStatus&) const = default;
};

// Something that a rank has asked for and that has not ended.
struct PendingCall {
  std::string title;
  Verb verb;
  std::string site;
  Clock::time_point since;
  std::string_view state;
};

std::string seconds_since(Clock::time_point since, Clock::time_point now);  // "3.2 s"
// Lines, the oldest first, each indented; "" if there is nothing.
std::string list_pending(std::vector<PendingCall> pending, Clock::time_point now);
// "rank 2 on host b" and what it says.
std::string section_of(int rank, const std::string& host, const RankStatus& report);

}  // namespace sirtaki
