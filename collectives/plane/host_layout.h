// The ranks of a group by host, for collectives in two levels: within each host, and between hosts.
#pragma once

#include <vector>

namespace sirtaki {

struct HostLayout {
  std::vector<int> host;  // the ranks of this host
  int leaders = 0;        // number of leaders on each host: ranks of the smallest host
  std::vector<int> rail;  // one rank of each host, with this rank's local rank; empty if this is no leader
  bool equal = true;      // all hosts have the same number of ranks
  int host_count = 0;
};

// `hosts`: a number for each rank, equal where they share a host.
HostLayout host_layout_of(int rank, const std::vector<int>& hosts);

}  // namespace sirtaki
