// Which plane serves a batch: the first in the list that can. The list's order is the preference; it is the same on all
// ranks, and so is the answer.
#pragma once

#include <memory>
#include <vector>

#include "plane/data_plane.h"

namespace sirtaki {

using DataPlanes = std::vector<std::unique_ptr<DataPlane>>;

// Null if no plane can.
DataPlane* find(const DataPlanes& planes, const PlaneQuery& query);
// Throws Error(kPrecondition) if no plane can.
DataPlane& choose(const DataPlanes& planes, const PlaneQuery& query);

}  // namespace sirtaki
