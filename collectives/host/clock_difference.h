// How the clocks of the hosts differ, so that times of several hosts can be compared. For observers only.
#pragma once

#include <chrono>
#include <vector>

#include "transport/transport.h"

namespace sirtaki {

// This host's Clock minus that of rank 0's host. The true value differs by at most `error`.
struct ClockDifference {
  std::chrono::nanoseconds offset{};
  std::chrono::nanoseconds error{};
};

// Collective over all ranks; blocks. `hosts`: the number of each rank's host. Exactly zero on rank 0's host.
ClockDifference compare_clocks(Transport& transport, const std::vector<int>& hosts);

}  // namespace sirtaki
