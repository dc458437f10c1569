#include "fabric/plane_list.h"

#include <algorithm>
#include <utility>

#include "plane/point_to_point.h"
#include "plane/shm/shm.h"
#include "plane/shm/two_level.h"

namespace sirtaki {
namespace {

bool share_one_host(const std::vector<int>& hosts) {
  return std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
}

class PlaneMaker {
 public:
  PlaneMaker(Transport& transport, const std::vector<int>& hosts, const PlaneOptions& options,
             const NetworkPlanes& network)
      : transport_(transport), hosts_(hosts), options_(options), network_(network) {}

  // Null if there is too little shared memory. `before`: the planes that the list has already.
  std::unique_ptr<DataPlane> make(PlaneKind kind, const DataPlanes& before) const {
    std::string why;
    std::unique_ptr<DataPlane> plane;
    switch (kind) {
      case PlaneKind::kSharedMemory:
        plane = make_shm_plane(transport_, why);
        break;
      case PlaneKind::kTwoLevel:
        plane = make_two_level_plane(transport_, hosts_, network_.make_rail, why);
        break;
      case PlaneKind::kNetwork:
        return network_.make_plane();
      case PlaneKind::kPointToPoint:
        return make_point_to_point_plane(transport_);
      case PlaneKind::kGpu:
        return make_plane_for_gpus(before);
    }
    if (!why.empty()) log("no shared memory, so data goes through the network: " + why);
    return plane;
  }

 private:
  std::unique_ptr<DataPlane> make_plane_for_gpus(const DataPlanes& before) const {
    GpuOptions gpus = options_.gpus;
    gpus.mpi = network_.gpu_memory;
    if (options_.hierarchical_allreduce) {
      std::string why;
      gpus.levels = make_host_levels(transport_, hosts_, network_.make_rail, why);
      if (!why.empty()) log("SIRTAKI_HIERARCHICAL_ALLREDUCE=1 is without effect: " + why);
    }
    std::vector<DataPlane*> host_planes;
    for (const auto& plane : before) host_planes.push_back(plane.get());
    return make_gpu_plane(transport_, std::move(host_planes), std::move(gpus));
  }

  void log(const std::string& line) const {
    if (transport_.rank() == 0 && options_.log) options_.log(line);
  }

  Transport& transport_;
  const std::vector<int>& hosts_;
  const PlaneOptions& options_;
  const NetworkPlanes& network_;
};

}  // namespace

std::vector<PlaneKind> order_of_planes(const PlaneFacts& facts) {
  std::vector<PlaneKind> order;
  if (facts.shared_memory && facts.hosts.size() > 1) {
    if (share_one_host(facts.hosts)) order.push_back(PlaneKind::kSharedMemory);
    if (has_two_levels(facts.hosts)) order.push_back(PlaneKind::kTwoLevel);
  }
  if (facts.network_collectives) order.push_back(PlaneKind::kNetwork);
  order.push_back(PlaneKind::kPointToPoint);  // supports everything in host memory
  order.push_back(PlaneKind::kGpu);           // the only plane for GPU tensors; it may use the planes before it
  return order;
}

PlaneOptions with_one_line(PlaneOptions options) {
  if (options.log) {
    options.log = [log = std::move(options.log), logged = std::make_shared<bool>(false)](const std::string& line) {
      if (!std::exchange(*logged, true)) log(line);
    };
  }
  return options;
}

DataPlanes make_planes(Transport& transport, const std::vector<int>& hosts, const PlaneOptions& options,
                       const NetworkPlanes& network) {
  const PlaneMaker maker(transport, hosts, options, network);
  DataPlanes planes;
  for (const PlaneKind kind : order_of_planes({hosts, options.shared_memory, network.make_plane != nullptr})) {
    if (auto plane = maker.make(kind, planes)) planes.push_back(std::move(plane));
  }
  return planes;
}

}  // namespace sirtaki
