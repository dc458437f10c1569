// The transport and the planes that work within one process, ranks as threads, by the same suites as MPI's.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "host/shm_transport.h"
#include "plane/point_to_point.h"
#include "plane/shm/shm.h"
#include "plane/shm/two_level.h"
#include "plane_suite.h"
#include "transport/loopback.h"
#include "transport_suite.h"

namespace sirtaki::contract {
namespace {

using Wrap = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>;

// `wrap`, on the rank's own thread, makes the transport that is tested.
void on_ranks(
    int size, const std::function<void(Transport&)>& body, const Wrap& wrap = [](auto inner) { return inner; }) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (auto& inner : transports) {
    threads.emplace_back([&] {
      const int rank = inner->rank();
      try {
        const auto transport = wrap(std::move(inner));
        body(*transport);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Control messages through shared memory, the rest through the loopback.
std::unique_ptr<Transport> over_shared_memory(std::unique_ptr<Transport> inner) {
  if (inner->size() == 1) return inner;
  std::string why;
  const auto bells = HostBells::make(*inner, why);
  REQUIRE_MESSAGE(bells != nullptr, why);
  std::vector<int> ranks(static_cast<std::size_t>(inner->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto transport = make_shm_transport(std::move(inner), bells, ranks, why);
  CHECK_MESSAGE(transport->wakes(), why);
  return transport;
}

constexpr std::array kSizes = {1, 2, 3, 4, 5, 8};

void check_plane_on_ranks(DataPlane& plane, const Transport& transport) {
  const auto check = transport.size() > 4 ? check_plane_on_many_ranks : check_plane;
  check(plane, transport.rank(), transport.size());
}

void check_shm_plane(Transport& transport) {
  std::string why;
  const auto plane = make_shm_plane(transport, why);
  REQUIRE_MESSAGE(plane != nullptr, why);
  check_plane_on_ranks(*plane, transport);
}

// `hosts`: a number for each rank.
void check_two_levels(const std::vector<int>& hosts) {
  on_ranks(static_cast<int>(hosts.size()), [&](Transport& transport) {
    std::string why;
    const auto plane = make_two_level_plane(transport, hosts, make_point_to_point_rails(transport), why);
    REQUIRE_MESSAGE(plane != nullptr, why);
    check_allreduce_plane(*plane, transport.rank(), transport.size());
  });
}

TEST_CASE("The loopback transport passes the transport suite") {
  for (const int size : kSizes) on_ranks(size, check_transport);
}

TEST_CASE("The shared-memory transport passes the transport suite") {
  for (const int size : kSizes) on_ranks(size, check_transport, over_shared_memory);
}

TEST_CASE("The point-to-point plane passes the plane suite") {
  for (const int size : kSizes) {
    on_ranks(size,
             [](Transport& transport) { check_plane_on_ranks(*make_point_to_point_plane(transport), transport); });
  }
}

TEST_CASE("The shared-memory plane passes the plane suite") {
  for (const int size : kSizes) on_ranks(size, check_shm_plane);
}

TEST_CASE("There are two levels where one of several hosts has several ranks") {
  CHECK_MESSAGE(has_two_levels({0, 0, 1}), "two hosts, one with two ranks");
  CHECK_MESSAGE(!has_two_levels({0, 1, 2}), "a rank on each host");
  CHECK_MESSAGE(!has_two_levels({0, 0}), "one host");
}

TEST_CASE("The two-level plane passes the suite of allreduce") {
  using Hosts = std::vector<int>;
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1, 0, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 1, 2},
                             Hosts{0, 0, 0, 0}, Hosts{0, 1, 2}}) {
    check_two_levels(hosts);
  }
}

}  // namespace
}  // namespace sirtaki::contract
