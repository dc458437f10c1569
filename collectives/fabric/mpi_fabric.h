// A job whose ranks reach each other through MPI.
#pragma once

#include <memory>

#include "fabric/fabric.h"
#include "fabric/plane_list.h"
#include "mpi/mpi_communicator.h"

namespace sirtaki {

// For the ranks of the communicator, which the fabric then owns. Collective; blocks. Fabrics that are split off share
// the options. All of them together report the same line for people only once.
std::unique_ptr<Fabric> make_mpi_fabric(MpiCommunicator communicator, PlaneOptions options);

}  // namespace sirtaki
