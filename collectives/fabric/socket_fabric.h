// A job whose ranks reach each other through TCP connections, without MPI.
#pragma once

#include <memory>

#include "fabric/fabric.h"
#include "fabric/plane_list.h"
#include "sockets/mesh_options.h"

namespace sirtaki {

// For all ranks of the mesh. Fabrics that are split off share the mesh and the options. All of them together report the
// same line for people only once.
std::unique_ptr<Fabric> make_socket_fabric(MeshOptions mesh, PlaneOptions options);

}  // namespace sirtaki
