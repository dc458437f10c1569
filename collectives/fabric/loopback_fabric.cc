#include "fabric/loopback_fabric.h"

#include <utility>

#include "plane/point_to_point.h"

namespace sirtaki {
namespace {

class LoopbackFabric final : public Fabric {
 public:
  LoopbackFabric(std::unique_ptr<Transport> transport, MakePlanes make_planes)
      : Fabric(std::move(transport)), make_planes_(std::move(make_planes)) {}

  DataPlanes make_planes(const std::vector<int>& hosts) override { return make_planes_(transport(), hosts); }

 private:
  std::unique_ptr<Fabric> split_network(const std::vector<int>& ranks, Callers callers) override {
    auto part = callers == Callers::kMembers ? transport().split_members(ranks) : transport().split(ranks);
    return part == nullptr ? nullptr : make_loopback_fabric(std::move(part), make_planes_);
  }

  MakePlanes make_planes_;
};

}  // namespace

DataPlanes make_point_to_point_planes(Transport& transport, const std::vector<int>&) {
  DataPlanes planes;
  planes.push_back(make_point_to_point_plane(transport));
  return planes;
}

std::unique_ptr<Fabric> make_loopback_fabric(std::unique_ptr<Transport> transport, MakePlanes make_planes) {
  return std::make_unique<LoopbackFabric>(std::move(transport), std::move(make_planes));
}

}  // namespace sirtaki
