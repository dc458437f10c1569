// Collectives made of transfers between pairs of ranks, over any transport. This plane supports all dtypes, all ops,
// Adasum, and any amount of data, so it is the last in the list of host planes. Each element is summed in the order of
// the ranks, so all ranks get the same bits.
#pragma once

#include <memory>

#include "plane/data_plane.h"
#include "plane/rail.h"
#include "transport/transport.h"

namespace sirtaki {

std::unique_ptr<DataPlane> make_point_to_point_plane(Transport& transport);

// Rails of such planes, for a network without collectives of its own. The transport outlives the function.
MakeRail make_point_to_point_rails(Transport& transport);

}  // namespace sirtaki
