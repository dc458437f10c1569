#include "fabric/socket_fabric.h"

#include <utility>

#include "plane/point_to_point.h"
#include "sockets/mesh.h"
#include "sockets/socket_transport.h"

namespace sirtaki {
namespace {

class SocketFabric final : public Fabric {
 public:
  SocketFabric(std::shared_ptr<Mesh> mesh, std::unique_ptr<Transport> transport,
               std::shared_ptr<const PlaneOptions> options)
      : Fabric(std::move(transport)), mesh_(std::move(mesh)), options_(std::move(options)) {}

  DataPlanes make_planes(const std::vector<int>& hosts) override {
    return sirtaki::make_planes(transport(), hosts, *options_, {.make_rail = make_point_to_point_rails(transport())});
  }

  void attach(Doorbell& doorbell) override { mesh_->attach(doorbell); }
  void on_forked_child() override { mesh_->on_forked_child(); }
  void before_sleep() override { mesh_->watch(); }

 private:
  std::unique_ptr<Fabric> split_network(const std::vector<int>& ranks, Callers callers) override {
    auto part = callers == Callers::kMembers ? transport().split_members(ranks) : transport().split(ranks);
    return part == nullptr ? nullptr : std::make_unique<SocketFabric>(mesh_, std::move(part), options_);
  }

  std::shared_ptr<Mesh> mesh_;
  std::shared_ptr<const PlaneOptions> options_;
};

}  // namespace

std::unique_ptr<Fabric> make_socket_fabric(MeshOptions mesh_options, PlaneOptions options) {
  auto mesh = std::make_shared<Mesh>(std::move(mesh_options));
  auto transport = std::make_unique<SocketTransport>(mesh);
  return std::make_unique<SocketFabric>(std::move(mesh), std::move(transport),
                                        std::make_shared<const PlaneOptions>(with_one_line(std::move(options))));
}

}  // namespace sirtaki
