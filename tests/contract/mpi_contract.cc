// The MPI transport and data plane under a given MPI: mpiexec -n N mpi_contract <path of libmpi>.
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "expect.h"
#include "fabric/mpi_fabric.h"
#include "fake_device.h"
#include "mpi/mpi_session.h"
#include "ordered_plane.h"
#include "plane/gpu/gpu.h"
#include "plane/mpi/mpi.h"
#include "plane/point_to_point.h"
#include "plane/shm/two_level.h"
#include "plane_suite.h"
#include "transport/mpi.h"
#include "transport_suite.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

using testing::check_error;

void check_loader_errors() {
  const std::vector<std::string> none = {"/nowhere/libmpi.so.1", "libm.so.6"};
  check_error(ErrorKind::kPrecondition, "no path", [] { load_mpi({}); });
  check_error(ErrorKind::kPrecondition, "/nowhere/libmpi.so.1: cannot open shared object file",
              [&] { load_mpi(none); });
  check_error(ErrorKind::kPrecondition, "libm.so.6: it is not an MPI 3 library: it lacks MPI_Init_thread, ",
              [&] { load_mpi(none); });
}

std::shared_ptr<const MpiLibrary> load(const std::string& path) {
  const std::vector<std::string> paths = {"/nowhere/libmpi.so.1", path};
  auto library = load_mpi(paths);
  auto facts = describe(*library);
  CHECK_MESSAGE(
      (facts["path"].ends_with(path.substr(path.rfind('/') + 1)) || facts["path"].find("libmpi") != std::string::npos),
      "path ", facts["path"]);
  CHECK_MESSAGE(!facts["version"].empty(), "no version");
  const std::vector<std::string> other = {"/nowhere/libmpi.so.1"};
  CHECK_MESSAGE(load_mpi(other)->path() == library->path(), "the loaded MPI is not found again");
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
  CHECK_MESSAGE(!communicator.mpi().takes_gpu_memory(), "this MPI takes GPU memory: run the tests on GPUs, too");
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

void check_names(const DataPlanes& planes, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const auto& plane : planes) found.emplace_back(plane->name());
  CHECK_MESSAGE(found == names, "another list of planes, from ", found.front(), " to ", found.back());
}

// All ranks, all but the first, and this rank alone, on the one host that they share.
void check_fabric(MpiCommunicator communicator) {
  const auto fabric = make_mpi_fabric(std::move(communicator), {});
  const int rank = fabric->transport().rank();
  const int size = fabric->transport().size();
  std::vector<std::string> names = {"mpi", "point-to-point", "gpu"};
  std::vector<int> most(static_cast<std::size_t>(size - 1));
  std::iota(most.begin(), most.end(), 1);
  const auto part = fabric->split(most);
  CHECK((part != nullptr) == (rank > 0));
  const auto own = fabric->split({rank});
  check_names(own->make_planes({0}), names);
  names.insert(names.begin(), "shm");
  if (size > 1) check_names(fabric->make_planes(std::vector<int>(static_cast<std::size_t>(size), 0)), names);
  if (part == nullptr || size < 3) return;
  const DataPlanes planes = part->make_planes(std::vector<int>(most.size(), 0));
  check_names(planes, names);
  for (const auto& plane : std::span(planes).first(3)) check_plane_briefly(*plane, rank - 1, size - 1);
}

// As if the first two ranks shared a host and the others another.
void check_two_levels(MpiCommunicator communicator) {
  const auto fabric = make_mpi_fabric(std::move(communicator), {});
  const Transport& transport = fabric->transport();
  std::vector<int> hosts(static_cast<std::size_t>(transport.size()), 1);
  hosts[0] = hosts[1] = 0;
  const DataPlanes planes = fabric->make_planes(hosts);
  check_names(planes, {"two-level", "mpi", "point-to-point", "gpu"});
  check_allreduce_plane(*planes[0], transport.rank(), transport.size());
}

// Ranks other than 0 backwards, made while rank 0 does something else.
void check_of_ranks(const MpiSession& session, int rank, int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size - 1));
  std::iota(ranks.rbegin(), ranks.rend(), 1);
  if (rank == 0) return;
  MpiTransport transport(session.of_ranks(ranks));
  CHECK_MESSAGE(transport.size() == size - 1, "wrong group");
  CHECK_MESSAGE(transport.rank() == size - 1 - rank, "wrong group");
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
    CHECK_MESSAGE(sum == static_cast<float>(transport.size()), "wrong sum");
  }
}

std::string library_path;  // from the command line

// MPI is initialised once in a process. An error ends the test, and mpiexec then ends the other ranks.
void with_mpi(const std::function<void(MpiSession&)>& body) {
  try {
    static MpiSession session(load(library_path));
    body(session);
  } catch (const std::exception& error) {
    FAIL(error.what());
  }
}

TEST_CASE("A path that is no MPI library is refused with the reason") { check_loader_errors(); }

TEST_CASE("MPI is initialised once, for any number of threads") {
  with_mpi([](const MpiSession& session) {
    CHECK(session.initialized_here());
    CHECK(session.multiple_threads());
    CHECK(!MpiSession(load(library_path)).initialized_here());
  });
}

TEST_CASE("Bad ranks and communicators are refused") {
  with_mpi([](const MpiSession& session) { check_bad_arguments(session, session.world().size()); });
}

TEST_CASE("The MPI transport and plane pass their suites") {
  with_mpi([](const MpiSession& session) { check_mpi(session.world()); });
}

TEST_CASE("GPU memory goes through an MPI that takes it") {
  with_mpi([](const MpiSession& session) {
    MpiCommunicator world = session.world();
    if (world.size() < 3) check_gpu_memory(std::move(world));
  });
}

TEST_CASE("The fabric makes the same ordered planes on all ranks") {
  with_mpi([](const MpiSession& session) { check_fabric(session.world()); });
}

TEST_CASE("The two-level plane passes the suite of allreduce over MPI") {
  with_mpi([](const MpiSession& session) {
    MpiCommunicator world = session.world();
    if (world.size() > 2) check_two_levels(std::move(world));
  });
}

TEST_CASE("Some of the ranks, in another order, form a group of their own") {
  with_mpi([](const MpiSession& session) {
    const MpiCommunicator world = session.world();
    check_of_ranks(session, world.rank(), world.size());
  });
}

TEST_CASE("Transports may be made again and again") { with_mpi(check_lives); }

// The last case, since MPI cannot be initialised again.
TEST_CASE("A finalised MPI makes no more communicators") {
  with_mpi([](MpiSession& session) {
    MpiTransport survivor(session.world());
    session.finalize();
    session.finalize();
    check_error(ErrorKind::kPrecondition, "finalised", [&] { session.world(); });
  });
}

}  // namespace
}  // namespace sirtaki::contract

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: mpi_contract <path of libmpi> [doctest's arguments]\n";
    return 2;
  }
  sirtaki::contract::library_path = argv[1];
  doctest::Context context(argc - 1, argv + 1);
  context.setOption("abort-after", 1);  // or this rank would go on alone
  const int code = context.run();
  if (code != 0) std::_Exit(code);  // without MPI_Finalize, for which others would be waited for
  return 0;
}
