// Allreduce for ranks on several hosts, where ranks of a host share memory. A batch is cut into pieces, and each piece
// into slices. On every host the i-th rank leads slice i. The leader first sums its slice over its host in shared
// memory. Then it sums over the hosts, with the leaders of the same slice, by another plane (a rail). Last, it writes
// the result back for the ranks of its host. So every byte crosses the network once for each host, and all leaders of a
// host share that work. Meanwhile the neighbouring pieces are summed in memory. One leader computes each slice of a
// host, so all ranks of the host get the same bits. All hosts do if a rail gives all its ranks the same bits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plane/data_plane.h"
#include "plane/rail.h"
#include "transport/transport.h"

namespace sirtaki {

// Is there more than one host, and does one of them have more than one rank? `hosts`: a number for each rank, equal for
// ranks that share memory.
bool has_two_levels(const std::vector<int>& hosts);

// Needs has_two_levels(). Collective over the transport's ranks; blocks. Hosts may have different numbers of ranks:
// each host has as many leaders as the smallest host has ranks. Null on all ranks if one host has not enough shared
// memory; `why` then says how much is missing and what to do.
std::unique_ptr<DataPlane> make_two_level_plane(Transport& transport, const std::vector<int>& hosts,
                                                const MakeRail& make_rail, std::string& why);

}  // namespace sirtaki
