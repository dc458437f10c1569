// Allreduce for ranks on several hosts, of which some share memory. A batch is cut into pieces and each piece into
// slices; on every host the i-th rank leads slice i. Leaders add up their slice over the host in shared memory, then
// over the hosts with the leaders of the same slice, by another plane (a rail), and write the result back for the ranks
// of their host. So every byte crosses the network once for each host, by as many processes at once as a host has
// ranks, while the neighbouring pieces are added up in memory. Every slice of a host is one leader's, so all its ranks
// get the same bits; all hosts do if the rails give the same to all their ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plane/data_plane.h"
#include "transport/transport.h"

namespace sirtaki {

// A plane that can allreduce, for the ranks of a transport. Collective over them; blocks.
using MakeRail = std::function<std::unique_ptr<DataPlane>(Transport&)>;

// Is there more than one host, and one with more than one rank? `hosts`: a number for each rank, equal where they share
// memory.
bool has_two_levels(const std::vector<int>& hosts);

// For such ranks. Collective over the transport's ranks; blocks. Hosts may have different numbers of ranks; as many as
// the smallest has then lead on each. Null on all ranks if one host has not enough shared memory; `why` then says how
// much was lacking and what to do.
std::unique_ptr<DataPlane> make_two_level_plane(Transport& transport, const std::vector<int>& hosts,
                                                const MakeRail& make_rail, std::string& why);

}  // namespace sirtaki
