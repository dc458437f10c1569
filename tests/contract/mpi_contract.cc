// The MPI transport and data plane under a given MPI: mpiexec -n N mpi_contract <path of libmpi>.
#include <iostream>
#include <numeric>
#include <vector>

#include "check.h"
#include "fake_device.h"
#include "ordered_plane.h"
#include "plane/gpu.h"
#include "plane/mpi.h"
#include "plane/point_to_point.h"
#include "plane/two_level.h"
#include "plane_suite.h"
#include "transport/mpi.h"
#include "transport/mpi_session.h"
#include "transport_suite.h"

namespace sirtaki::contract {
namespace {

void check_loader_errors() {
  const std::vector<std::string> none = {"/nowhere/libmpi.so.1", "libm.so.6"};
  check_error(ErrorKind::kPrecondition, "no path", [] { load_mpi({}); });
  check_error(ErrorKind::kPrecondition, "/nowhere/libmpi.so.1: cannot open shared object file",
              [&] { load_mpi(none); });
  check_error(ErrorKind::kPrecondition, "libm.so.6: it is no MPI 3 library, for it lacks MPI_Init_thread, ",
              [&] { load_mpi(none); });
}

std::shared_ptr<const MpiLibrary> load(const std::string& path) {
  const std::vector<std::string> paths = {"/nowhere/libmpi.so.1", path};
  auto library = load_mpi(paths);
  auto facts = describe(*library);
  check(facts["path"].ends_with(path.substr(path.rfind('/') + 1)) || facts["path"].find("libmpi") != std::string::npos,
        "path " + facts["path"]);
  check(!facts["version"].empty(), "no version");
  const std::vector<std::string> other = {"/nowhere/libmpi.so.1"};
  check(load_mpi(other)->path() == library->path(), "the loaded MPI is not found again");
  return library;
}

void check_bad_arguments(const MpiSession& session, int size) {
  const auto refused = [&](const std::vector<int>& ranks, const std::string& why) {
    check_error(ErrorKind::kInvalidArgument, why, [&] { session.of_ranks(ranks); });
  };
  refused({0, size}, std::to_string(size) + " is not a rank");
  refused({-1}, "-1 is not a rank");
  refused({0, 0}, "0 is listed twice");
  refused({}, "is not among them");
  check_error(ErrorKind::kInvalidArgument, "MPI_COMM_NULL", [&] { session.duplicate(0); });
}

void check_mpi(MpiCommunicator communicator) {
  MpiTransport transport(std::move(communicator));
  check_transport(transport);
  const std::unique_ptr<DataPlane> plane = make_mpi_plane(transport);
  check_plane(*plane, transport.rank(), transport.size());
}

// As if MPI took GPU memory, which that of a fake GPU is.
void check_gpu_memory(MpiCommunicator communicator) {
  check(!communicator.mpi().takes_gpu_memory(), "this MPI takes GPU memory: run the tests on GPUs, too");
  MpiTransport transport(std::move(communicator));
  const auto device = make_fake_device();
  const Stream stream = device->make_stream();
  GpuOptions options;
  options.devices = [&](int) -> Device& { return *device; };
  options.mpi = &transport.communicator();
  options.operations = "mpi";
  {
    const auto host = make_point_to_point_plane(transport);  // for what MPI does not reduce by our rule
    const auto plane = make_gpu_plane(transport, {host.get()}, std::move(options));
    OrderedPlane ordered(*plane, *device, stream, transport.rank());
    check_plane_briefly(ordered, transport.rank(), transport.size());
  }
  device->destroy(stream);
}

// As if the first two ranks shared a host and the others another.
void check_two_levels(MpiCommunicator communicator) {
  MpiTransport transport(std::move(communicator));
  std::vector<int> hosts(static_cast<std::size_t>(transport.size()), 1);
  hosts[0] = hosts[1] = 0;
  check(has_two_levels(hosts), "one level");
  std::string why;
  const auto plane = make_two_level_plane(
      transport, hosts, [](Transport& rail) { return make_mpi_plane(dynamic_cast<MpiTransport&>(rail)); }, why);
  check(plane != nullptr, why);
  check_allreduce_plane(*plane, transport.rank(), transport.size());
}

// Ranks other than 0 backwards, made while rank 0 does something else.
void check_of_ranks(const MpiSession& session, int rank, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size - 1));
  std::iota(ranks.rbegin(), ranks.rend(), 1);
  if (rank == 0) return;
  MpiTransport transport(session.of_ranks(ranks));
  check(transport.size() == size - 1 && transport.rank() == size - 1 - rank, "wrong group");
  check_transport(transport);
}

void check_lives(const MpiSession& session) {
  const auto world = static_cast<std::uint64_t>(session.library().comm_world());
  for (int i = 0; i < 10; ++i) {
    MpiTransport transport(session.duplicate(world));
    const std::unique_ptr<DataPlane> plane = make_mpi_plane(transport);
    const float one = 1;
    float sum = 0;
    const std::vector<Segment> segments = {{&one, &sum, 1}};
    wait(plane->allreduce({}, segments));
    check(sum == static_cast<float>(transport.size()), "wrong sum");
  }
}

void run(const std::string& path) {
  check_loader_errors();
  MpiSession session(load(path));
  check(session.initialized_here() && session.multiple_threads(), "initialised without threads");
  check(!MpiSession(load(path)).initialized_here(), "initialised twice");
  {
    MpiCommunicator world = session.world();
    const int rank = world.rank();
    const int size = world.size();
    check_bad_arguments(session, size);
    check_mpi(std::move(world));
    if (size < 3) check_gpu_memory(session.world());
    if (size > 2) check_two_levels(session.world());
    check_of_ranks(session, rank, size);
    check_lives(session);
    if (rank == 0) std::cout << "passed on " << size << " ranks, " << session.library().abi() << std::endl;
  }
  MpiTransport survivor(session.world());
  session.finalize();
  session.finalize();
  check_error(ErrorKind::kPrecondition, "finalised", [&] { session.world(); });
}

}  // namespace
}  // namespace sirtaki::contract

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: mpi_contract <path of libmpi>\n";
    return 2;
  }
  try {
    sirtaki::contract::run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
