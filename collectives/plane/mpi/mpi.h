// Data plane over MPI's nonblocking collectives, for host memory.
#pragma once

#include <memory>

#include "plane/data_plane.h"
#include "transport/mpi.h"

namespace sirtaki {

// On a communicator of its own. Collective over the transport's ranks; blocks. The plane runs one task at a time. If a
// task is given up before it has finished, its tensors must stay, since MPI cannot take a collective back.
std::unique_ptr<DataPlane> make_mpi_plane(const MpiTransport& transport);

}  // namespace sirtaki
