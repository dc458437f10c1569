// The fabric's contract: the list of planes and what it depends on, the parts that are split off, shared memory for
// control messages, and the end of the job.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "expect.h"
#include "fabric/loopback_fabric.h"
#include "fabric/plane_list.h"
#include "host/host_bells.h"
#include "plane/point_to_point.h"
#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

using enum PlaneKind;
using Names = std::vector<std::string>;

void on_ranks(int size, const std::function<void(std::unique_ptr<Transport>)>& body) {
  std::vector<std::thread> threads;
  for (auto& transport : make_loopback(size)) {
    threads.emplace_back([&body, own = std::move(transport)]() mutable { body(std::move(own)); });
  }
  for (std::thread& thread : threads) thread.join();
}

Names names_of(const DataPlanes& planes) {
  Names names;
  for (const auto& plane : planes) names.emplace_back(plane->name());
  return names;
}

void check_order(const PlaneFacts& facts, const std::vector<PlaneKind>& expected, const std::string& what) {
  CHECK_MESSAGE((order_of_planes(facts) == expected), "the order of planes for ", what);
}

TEST_CASE("The order of planes follows from agreed facts") {
  check_order({.hosts = {4}}, {kNetwork, kPointToPoint, kGpu}, "one rank");
  check_order({.hosts = {4, 4, 4}}, {kSharedMemory, kNetwork, kPointToPoint, kGpu}, "one host");
  check_order({.hosts = {0, 0, 1}}, {kTwoLevel, kNetwork, kPointToPoint, kGpu}, "hosts, one with several ranks");
  check_order({.hosts = {0, 1, 2}}, {kNetwork, kPointToPoint, kGpu}, "hosts with one rank each");
  for (const std::vector<int>& hosts : {std::vector<int>{4, 4, 4}, std::vector<int>{0, 0, 1}}) {
    check_order({.hosts = hosts, .shared_memory = false}, {kNetwork, kPointToPoint, kGpu}, "no shared memory");
  }
  check_order({.hosts = {0, 0, 1}, .network_collectives = false}, {kTwoLevel, kPointToPoint, kGpu},
              "a network without collectives");
}

// A network whose own collectives are the point-to-point plane's, and what is told to people.
Names planes_made(Transport& transport, const std::vector<int>& hosts, PlaneOptions options, std::string& told) {
  options.log = [&told](const std::string& line) { told += line; };
  const NetworkPlanes network{.make_plane = [&] { return make_point_to_point_plane(transport); },
                              .make_rail = make_point_to_point_rails(transport)};
  return names_of(make_planes(transport, hosts, options, network));
}

TEST_CASE("The planes are made in that order") {
  on_ranks(3, [](const std::unique_ptr<Transport>& transport) {
    std::string told;
    const Names network = {"point-to-point", "point-to-point", "gpu"};
    const auto behind = [&](const std::string& first) {
      Names names = network;
      names.insert(names.begin(), first);
      return names;
    };
    CHECK_MESSAGE((planes_made(*transport, {0, 0, 0}, {}, told) == behind("shm")), "one host");
    CHECK_MESSAGE((planes_made(*transport, {0, 0, 1}, {}, told) == behind("two-level")), "two hosts");
    CHECK_MESSAGE((planes_made(*transport, {0, 1, 2}, {.hierarchical_allreduce = true}, told) == network),
                  "three hosts");
    CHECK_MESSAGE((planes_made(*transport, {0, 0, 0}, {.shared_memory = false}, told) == network), "no shared memory");
    CHECK_MESSAGE(told == std::string(), "nothing to tell");
    CHECK_MESSAGE((planes_made(*transport, {0, 0, 1}, {.hierarchical_allreduce = true}, told) == behind("two-level")),
                  "unequal");
    const bool said = told.find("the hosts have different numbers of ranks") != std::string::npos;
    CHECK_MESSAGE(said == (transport->rank() == 0), "only rank 0 says so: ", told);
  });
}

TEST_CASE("A part has the ranks in the order given") {
  on_ranks(4, [](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    const auto fabric = make_loopback_fabric(std::move(transport));
    const auto part = fabric->split({3, 1});
    CHECK_MESSAGE(((part != nullptr) == (rank == 3 || rank == 1)), "only for its ranks");
    if (part != nullptr) {
      CHECK_MESSAGE(part->transport().rank() == (rank == 3 ? 0 : 1), "rank");
      CHECK_MESSAGE(part->transport().size() == 2, "size");
      const DataPlanes planes = part->make_planes({0, 0});
      CHECK_MESSAGE((names_of(planes) == Names{"point-to-point"}), "planes of its own");
      float value = static_cast<float>(rank);
      const std::vector<Segment> segments = {{&value, &value, 1}};
      Task sum = planes[0]->allreduce({}, segments);
      while (!sum.advance()) std::this_thread::yield();
      CHECK_MESSAGE(value == 4.0F, "sum over the part");
    }
    const auto own = fabric->split(rank % 2 == 0 ? std::vector<int>{rank} : std::vector<int>{});
    CHECK_MESSAGE(((own != nullptr) == (rank % 2 == 0)), "several parts at once");
  });
}

TEST_CASE("Parts send control messages through shared memory as the job does") {
  on_ranks(3, [](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    const auto fabric = make_loopback_fabric(std::move(transport));
    const auto before = fabric->split({0, 1});
    CHECK_MESSAGE(std::string(fabric->transport().name()) == std::string("loopback"), "before");
    std::string why;
    auto bells = HostBells::make(fabric->transport(), why);
    REQUIRE_MESSAGE(bells != nullptr, why);
    fabric->share_memory(bells);
    CHECK_MESSAGE(std::string(fabric->transport().name()) == std::string("shm"), "after");
    const auto part = fabric->split({2, 0});
    const auto nested = part == nullptr ? nullptr : part->split({1, 0});
    const auto single = fabric->split({rank});
    CHECK_MESSAGE((!single->transport().wakes()), "one rank sends nothing");
    if (part == nullptr) return;
    CHECK_MESSAGE(part->transport().wakes(), "parts");
    CHECK_MESSAGE(nested->transport().wakes(), "parts of parts");
    if (nested->transport().rank() != 0) nested->transport().send(0, {std::byte{7}});
    Message message;
    while (nested->transport().rank() == 0 && !nested->transport().receive(message)) std::this_thread::yield();
    if (nested->transport().rank() == 0) CHECK_MESSAGE((message.bytes == Bytes{std::byte{7}}), "the message");
  });
}

TEST_CASE("An abort ends the job for every rank") {
  on_ranks(3, [](std::unique_ptr<Transport> transport) {
    const int rank = transport->rank();
    const auto fabric = make_loopback_fabric(std::move(transport));
    if (rank == 1) {
      fabric->abort_job(5);
      return;
    }
    const auto error = expect_throw<Error>(
        [&] {
          Message message;
          while (!fabric->transport().receive(message)) std::this_thread::yield();
        },
        "a rank of a job that was ended");
    check_contains(error.what(), "rank 1 ended the job with exit code 5");
  });
}

}  // namespace
}  // namespace sirtaki::testing
