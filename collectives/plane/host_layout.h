// The ranks of a group by host: who shares this rank's host, and who has the same place on the others.
#pragma once

#include <vector>

namespace sirtaki {

struct HostLayout {
  std::vector<int> host;  // the ranks of this host
  int leaders = 0;        // on each host: as many as the smallest has
  std::vector<int> rail;  // the ranks of this one's place, by host; empty if it is none of the leaders
  bool equal = true;      // all hosts have the same number of ranks
  int host_count = 0;
};

// `hosts`: a number for each rank, equal where they share a host.
HostLayout host_layout_of(int rank, const std::vector<int>& hosts);

}  // namespace sirtaki
