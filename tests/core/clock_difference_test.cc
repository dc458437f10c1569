// Clocks of several hosts, with ranks that are threads and so have one clock.
#include "host/clock_difference.h"

#include <doctest/doctest.h>

#include <thread>

#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

TEST_CASE("The ranks of a host get the difference that its first rank has measured") {
  auto transports = make_loopback(4);
  ClockDifference differences[4];
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] { differences[rank] = compare_clocks(*transports[rank], {0, 1, 0, 1}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::size_t same_host : {0, 2}) {
    CHECK(differences[same_host].offset.count() == 0);
    CHECK(differences[same_host].error.count() == 0);
  }
  CHECK(differences[1].error.count() > 0);
  CHECK_MESSAGE(std::chrono::abs(differences[1].offset) <= differences[1].error, "the true difference is zero");
  CHECK(differences[3].offset == differences[1].offset);
  CHECK(differences[3].error == differences[1].error);
}

}  // namespace
}  // namespace sirtaki::testing
