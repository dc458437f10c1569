#include "fabric/mpi_fabric.h"

#include <utility>

#include "plane/mpi/mpi.h"
#include "transport/mpi.h"

namespace sirtaki {
namespace {

using SharedOptions = std::shared_ptr<const PlaneOptions>;

const MpiCommunicator* gpu_memory_of(const MpiTransport& transport) {
  return transport.communicator().mpi().takes_gpu_memory() ? &transport.communicator() : nullptr;
}

class MpiFabric final : public Fabric {
 public:
  static std::unique_ptr<Fabric> make(std::unique_ptr<MpiTransport> transport, SharedOptions options) {
    MpiTransport& mpi = *transport;
    return std::unique_ptr<Fabric>(new MpiFabric(std::move(transport), mpi, std::move(options)));
  }

  DataPlanes make_planes(const std::vector<int>& hosts) override {
    const NetworkPlanes network{.make_plane = [this] { return make_mpi_plane(mpi_); },
                                .make_rail = [this](const std::vector<int>& ranks) { return make_rail(ranks); },
                                .gpu_memory = gpu_memory_of(mpi_)};
    return sirtaki::make_planes(transport(), hosts, *options_, network);
  }

 private:
  MpiFabric(std::unique_ptr<Transport> transport, MpiTransport& mpi, SharedOptions options)
      : Fabric(std::move(transport)), mpi_(mpi), options_(std::move(options)) {}

  std::unique_ptr<Fabric> split_network(const std::vector<int>& ranks, Callers callers) override {
    auto part = callers == Callers::kMembers ? mpi_.split_members_mpi(ranks) : mpi_.split_mpi(ranks);
    return part == nullptr ? nullptr : make(std::move(part), options_);
  }

  Rail make_rail(const std::vector<int>& ranks) {
    auto part = mpi_.split_mpi(ranks);
    if (part == nullptr) return {};
    auto plane = make_mpi_plane(*part);
    const MpiCommunicator* gpu_memory = gpu_memory_of(*part);
    return {std::move(part), std::move(plane), gpu_memory};
  }

  MpiTransport& mpi_;  // belongs to the base class
  SharedOptions options_;
};

}  // namespace

std::unique_ptr<Fabric> make_mpi_fabric(MpiCommunicator communicator, PlaneOptions options) {
  return MpiFabric::make(std::make_unique<MpiTransport>(std::move(communicator)),
                         std::make_shared<const PlaneOptions>(with_one_line(std::move(options))));
}

}  // namespace sirtaki
