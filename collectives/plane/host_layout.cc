#include "plane/host_layout.h"

#include <algorithm>
#include <map>

namespace sirtaki {

HostLayout host_layout_of(int rank, const std::vector<int>& hosts) {
  std::map<int, std::vector<int>> ranks;  // by host
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) ranks[hosts[static_cast<std::size_t>(r)]].push_back(r);
  HostLayout levels;
  levels.host = ranks[hosts[static_cast<std::size_t>(rank)]];
  levels.host_count = static_cast<int>(ranks.size());
  std::size_t fewest = hosts.size();
  for (const auto& [host, members] : ranks) fewest = std::min(fewest, members.size());
  levels.leaders = static_cast<int>(fewest);
  const auto own = static_cast<std::size_t>(std::ranges::find(levels.host, rank) - levels.host.begin());
  for (const auto& [host, members] : ranks) {
    levels.equal &= members.size() == fewest;
    if (own < fewest) levels.rail.push_back(members[own]);
  }
  return levels;
}

}  // namespace sirtaki
