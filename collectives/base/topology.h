// Which ranks share a host; local_rank, cross_rank and their sizes follow from that.
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
  bool homogeneous = true;  // every host has the same number of ranks
};

// `hosts`: for each rank, a text that identifies its host.
Topology make_topology(int rank, const std::vector<std::string>& hosts);

// A host number for each rank; hosts are numbered from 0 in order of appearance.
std::vector<int> number_hosts(const std::vector<std::string>& hosts);

// The index of `rank` in `ranks`, or -1.
int index_of(const std::vector<int>& ranks, int rank);

// "ranks 0, 2" or "rank 1".
std::string list_ranks(std::span<const int> ranks);

}  // namespace sirtaki
