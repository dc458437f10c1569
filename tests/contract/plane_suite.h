// What every DataPlane for host memory must do, compared with results that each rank works out from a formula. All
// ranks of the group call this at once.
#pragma once

#include "plane/data_plane.h"

namespace sirtaki::contract {

// Up to 4 ranks.
void check_plane(DataPlane& plane, int rank, int size);

// Every verb, dtype and op, with less of everything.
void check_plane_briefly(DataPlane& plane, int rank, int size);

// The same with small tensors; up to 8 ranks.
void check_plane_on_many_ranks(DataPlane& plane, int rank, int size);

// A plane that only allreduces; up to 6 ranks.
void check_allreduce_plane(DataPlane& plane, int rank, int size);

}  // namespace sirtaki::contract
