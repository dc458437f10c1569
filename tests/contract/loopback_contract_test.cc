// The transport and the planes that work within one process, ranks as threads, by the same suites as MPI's.
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "plane/point_to_point.h"
#include "plane/shm.h"
#include "plane_suite.h"
#include "transport/loopback.h"
#include "transport_suite.h"

namespace sirtaki::contract {
namespace {

void on_ranks(int size, const std::function<void(Transport&)>& body) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&] {
      try {
        body(*transport);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", transport->rank(), size, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void check_shm_plane(Transport& transport) {
  std::string why;
  const auto plane = make_shm_plane(transport, why);
  check(plane != nullptr, why);
  check_plane(*plane, transport.rank(), transport.size());
}

}  // namespace
}  // namespace sirtaki::contract

int main() {
  using namespace sirtaki::contract;
  for (int size = 1; size <= 4; ++size) {
    on_ranks(size, check_transport);
    on_ranks(size, [](sirtaki::Transport& transport) {
      const auto plane = sirtaki::make_point_to_point_plane(transport);
      check_plane(*plane, transport.rank(), transport.size());
    });
    on_ranks(size, check_shm_plane);
  }
}
