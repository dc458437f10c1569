// What every DataPlane for host memory must do, compared with results that each rank works out from a formula. All
// ranks of the group, 4 at most, call this at once.
#pragma once

#include "plane/data_plane.h"

namespace sirtaki::contract {

void check_plane(DataPlane& plane, int rank, int size);

// Every verb, dtype and op, with less of everything.
void check_plane_briefly(DataPlane& plane, int rank, int size);

}  // namespace sirtaki::contract
