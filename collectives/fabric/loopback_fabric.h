// A job whose ranks are threads of one process. For tests; they choose the planes.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fabric/fabric.h"

namespace sirtaki {

using MakePlanes = std::function<DataPlanes(Transport&, const std::vector<int>& hosts)>;

// Only the point-to-point plane, which works on any transport.
DataPlanes make_point_to_point_planes(Transport& transport, const std::vector<int>& hosts);

// For one rank of make_loopback(), or of a transport around it.
std::unique_ptr<Fabric> make_loopback_fabric(std::unique_ptr<Transport> transport,
                                             MakePlanes make_planes = make_point_to_point_planes);

}  // namespace sirtaki
