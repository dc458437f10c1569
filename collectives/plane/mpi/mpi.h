// The data plane that uses MPI's nonblocking collectives, for host memory.
#pragma once

#include <memory>

#include "plane/data_plane.h"
#include "transport/mpi.h"

namespace sirtaki {

// The plane duplicates the transport's communicator. Collective over the transport's ranks; blocks. The plane runs one
// task at a time. If a task is dropped before it has finished, its tensors must stay in memory, since MPI cannot cancel
// a collective.
std::unique_ptr<DataPlane> make_mpi_plane(const MpiTransport& transport);

}  // namespace sirtaki
