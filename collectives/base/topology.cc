#include "base/topology.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sirtaki {

namespace {

std::vector<int> number_hosts(const std::vector<std::string>& hosts) {
  std::map<std::string, int> numbers;
  std::vector<int> result;
  for (const std::string& host : hosts) {
    const auto next = static_cast<int>(numbers.size());
    result.push_back(numbers.try_emplace(host, next).first->second);
  }
  return result;
}

}  // namespace

Topology make_topology(int rank, const std::vector<std::string>& hosts, std::vector<std::string> names) {
  Topology topology;
  topology.host_names = std::move(names);
  topology.host_numbers = number_hosts(hosts);
  topology.rank = rank;
  topology.size = static_cast<int>(hosts.size());
  std::vector<std::string> in_order;  // hosts by their first rank
  std::map<std::string, int> ranks;   // how many on each
  const std::string& own = hosts[static_cast<std::size_t>(rank)];
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r] == own && static_cast<int>(r) < rank) ++topology.local_rank;
    if (++ranks[hosts[r]] == 1) in_order.push_back(hosts[r]);
  }
  topology.local_size = ranks[own];
  topology.cross_size = 0;
  for (const std::string& host : in_order) {
    if (ranks[host] <= topology.local_rank) continue;
    if (host == own) topology.cross_rank = topology.cross_size;
    ++topology.cross_size;
  }
  topology.homogeneous =
      std::all_of(ranks.begin(), ranks.end(), [&](const auto& entry) { return entry.second == topology.local_size; });
  return topology;
}

int index_of(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

std::string list_ranks(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace sirtaki
