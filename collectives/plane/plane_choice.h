// Chooses the plane for a batch: the first plane in the list that supports it. The list is in order of preference. It
// is the same on all ranks, so all ranks choose the same plane.
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
