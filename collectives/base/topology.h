// Which ranks share a host, and the numbers that follow from it.
#pragma once

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
  bool homogeneous = true;  // every host has as many ranks
};

// `hosts`: an identity of each rank's host.
Topology make_topology(int rank, const std::vector<std::string>& hosts);

// A number for each rank, from 0 on in the order in which hosts appear.
std::vector<int> number_hosts(const std::vector<std::string>& hosts);

// Where a rank stands among these, or -1.
int index_of(const std::vector<int>& ranks, int rank);

}  // namespace sirtaki
