// The hosts of the ranks, and which ranks share one; local_rank, cross_rank and their sizes follow from that.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace sirtaki {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  // this host among those that have a rank with this local rank
  int cross_size = 1;
  bool homogeneous = true;              // every host has the same number of ranks
  std::vector<std::string> host_names;  // by rank, for messages
  std::vector<int> host_numbers;        // by rank; hosts are numbered from 0 in order of appearance

  const std::string& host_name(int rank_in_job) const { return host_names[static_cast<std::size_t>(rank_in_job)]; }
};

// `hosts`: for each rank, a text that identifies its host. `names`: for each rank, its host's name for messages.
Topology make_topology(int rank, const std::vector<std::string>& hosts, std::vector<std::string> names);

// The index of `rank` in `ranks`, or -1.
int index_of(const std::vector<int>& ranks, int rank);

// "ranks 0, 2" or "rank 1".
std::string list_ranks(std::span<const int> ranks);

}  // namespace sirtaki
