// The transport over TCP, by the same suites as the others, between threads of this process.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "plane/point_to_point.h"
#include "plane_suite.h"
#include "socket_jobs.h"
#include "transport_suite.h"

namespace sirtaki::contract {
namespace {

constexpr std::array kSizes = {1, 2, 3, 4, 5, 8};

void on_ranks(std::vector<std::unique_ptr<Transport>> transports, const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&body, own = std::move(transport)]() mutable {
      try {
        body(*own);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", own->rank(), own->size(), error.what());
        std::_Exit(1);
      }
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("The transport over sockets passes the transport suite") {
  for (const int size : kSizes) on_ranks(testing::make_socket_transports(size), check_transport);
}

bool has_ipv6() {
  try {
    static_cast<void>(listen_at({"::1", 0}));
    return true;
  } catch (const Error& error) {
    MESSAGE("not tested: no IPv6 here: " << error.what());
    return false;
  }
}

TEST_CASE("The transport over sockets passes the transport suite over IPv6") {
  if (!has_ipv6()) return;
  on_ranks(testing::make_socket_transports(3, "::1"), check_transport);
}

TEST_CASE("The point-to-point plane passes the plane suite over sockets") {
  for (const int size : kSizes) {
    on_ranks(testing::make_socket_transports(size), [](Transport& transport) {
      const auto plane = make_point_to_point_plane(transport);
      const auto check = transport.size() > 4 ? check_plane_on_many_ranks : check_plane;
      check(*plane, transport.rank(), transport.size());
    });
  }
}

}  // namespace
}  // namespace sirtaki::contract
