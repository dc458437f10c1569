// What goes wrong in a job of whole engines ends as an error on every rank.
#include <doctest/doctest.h>

#include <array>
#include <barrier>
#include <cmath>
#include <regex>

#include "engine_jobs.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

// A plane that breaks in the middle of a job, on one rank.
class BrokenPlane final : public DataPlane {
 public:
  std::string_view name() const override { return "broken"; }
  bool supports(const PlaneQuery&) const override { return true; }
  Task allreduce(Reduction, std::span<const Segment>) override {
    co_await PendingPtr();
    throw std::runtime_error("wire on fire");
  }
  Task broadcast(int, std::size_t, std::span<const Segment>) override { co_return; }
  Task allgather(std::size_t, const Spread&) override { co_return; }
  Task reducescatter(Reduction, const Spread&) override { co_return; }
  Task alltoall(std::size_t, const Exchange&) override { co_return; }
};

TEST_CASE("A failing collective ends the job with its cause") {
  for (const int broken : {0, 2}) {
    run_ranks(
        3,
        [](Engine& engine, int) {
          std::vector<float> data(4, 1.0F);
          const auto work = allreduce(engine, data, "x");
          const auto error = expect_throw<Error>([&] { wait(work); }, "failure");
          check_contains(error.what(), "wire on fire");
        },
        [](int) { return default_options(); },
        [broken](int rank) -> MakePlanes {
          if (rank != broken) return make_point_to_point_planes;
          return [](Transport&, const std::vector<int>&) {
            DataPlanes planes;
            planes.push_back(std::make_unique<BrokenPlane>());
            return planes;
          };
        });
  }
}

// Each rank may find out by itself that it cannot go on; all tell the same story afterwards.
TEST_CASE("Ranks that fail at the same time agree on one cause") {
  run_ranks(4, [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    if (rank % 2 == 1) {
      FailureCause own{
          FailureKind::kException, -1, "", "ValueError: from " + std::to_string(rank), 0, "train.py:7", -1};
      const FailureCause agreed = engine.fail_job(own);
      CHECK_MESSAGE((agreed.rank == 1 || agreed.rank == 3), "one of those that failed");
      CHECK_MESSAGE(agreed.text == "ValueError: from " + std::to_string(agreed.rank), "its own text");
      CHECK_MESSAGE(agreed.witness == agreed.rank, "filled in");
      CHECK_MESSAGE(agreed.site == "train.py:7", "filled in");
      CHECK_MESSAGE(!agreed.host.empty(), "filled in");
      CHECK_MESSAGE(engine.cause() == agreed, "known from now on");
    } else {
      const auto error = expect_throw<Error>([&] { wait(allreduce(engine, data, "x")); }, "failure");
      CHECK(error.kind() == ErrorKind::kAborted);
    }
    while (!engine.cause()) std::this_thread::yield();
    static std::array<std::string, 4> told;
    told[static_cast<std::size_t>(rank)] = engine.cause()->describe();
    static std::barrier all(4);
    all.arrive_and_wait();
    CHECK_MESSAGE(told[static_cast<std::size_t>(rank)] == told[0], "the same on every rank");
    check_contains(told[0], " in train.py:7: ValueError: from ");
    const auto error = expect_throw<Error>([&] { allreduce(engine, data, "y"); }, "after the failure");
    CHECK_MESSAGE(std::string(error.what()) == told[0], "what later calls say");
  });
}

TEST_CASE("A rank that goes away fails the others") {
  auto transports = make_loopback(2);
  std::thread leaves([&] {
    Engine engine(default_options(), make_loopback_fabric(std::move(transports[1])));
    engine.shutdown();  // would wait for the other rank for ever
    check_contains(engine.failure(), "rank 0 left without shutdown()");
  });
  {
    Engine engine(default_options(), make_loopback_fabric(std::move(transports[0])));
  }
  leaves.join();
}

TEST_CASE("A mismatch is an error on every rank, and the next call works") {
  run_ranks(3, [](Engine& engine, int rank) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> data(rank == 1 ? 4 : 6, 1.0F);
      Request request = request_of(Verb::kAllreduce, "x", rank == 1 ? Shape{4} : Shape{6});
      const auto work = engine.queue().put(0, {request, {{data.data(), data.data()}}});
      const auto error = expect_throw<Error>([&] { wait(work); }, "shape mismatch");
      CHECK(error.kind() == ErrorKind::kPrecondition);
      check_contains(error.what(), "shape differs");
      std::vector<float> fine(3, 1.0F);
      wait(allreduce(engine, fine, "y"));
      CHECK_MESSAGE(fine[0] == 3.0F, "the next call works");
    }
  });
}

TEST_CASE("Bad arguments are refused at the call") {
  run_ranks(2, [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    const auto refused = [&](Request request, const std::string& part, int group = 0) {
      std::vector<Address> addresses(request.tensors.size(), Address{data.data(), data.data()});
      const auto error = expect_throw<Error>([&] { engine.queue().put(group, {request, addresses}); }, part);
      CHECK_MESSAGE(error.kind() == ErrorKind::kInvalidArgument, "kind of: ", part);
      check_contains(error.what(), part);
    };
    Request request = request_of(Verb::kAllreduce, "x", {4});
    request.prescale = std::nan("");
    refused(request, "prescale_factor is nan");
    request = request_of(Verb::kAllreduce, "x", {4});
    refused(request, "no process set 9", 9);
    request.verb = Verb::kBroadcast;
    request.root = 2;
    refused(request, "root rank 2 is not among ranks 0, 1");
    request = request_of(Verb::kAlltoall, "x", {3});
    refused(request, "3 rows cannot be divided evenly among 2 ranks");
    request.splits = {1, 1, 1};
    refused(request, "one entry for each of 2 ranks, got 3");
    request.splits = {-1, 1};
    refused(request, "negative number -1");
    request.splits = {3, 1};
    refused(request, "more than the tensor's 3 rows");
    refused(request_of(Verb::kAllgather, "x", {}), "scalar");
    request = request_of(Verb::kAllreduce, "x", {4}, DType::kBool);
    request.op = ReduceOp::kAverage;
    refused(request, "Average of bool");
    request = request_of(Verb::kAllreduce, "x", {4});
    request.tensors = {request.tensors[0], request.tensors[0]};
    refused(request, "share memory");
    // Stays in flight until the other rank asks for it too.
    const std::string own = "twice" + std::to_string(rank);
    const auto first = allreduce(engine, data, own);
    std::vector<float> other(4, 1.0F);
    const auto error = expect_throw<Error>([&] { allreduce(engine, other, own); }, "duplicate name");
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
    wait(plain(engine, Verb::kBarrier));  // both have tried
    wait(allreduce(engine, other, "twice" + std::to_string(1 - rank)));
    wait(first);
    wait(allreduce(engine, other, "twice0"));
    CHECK_MESSAGE(other[0] == 4.0F, "the name is free again");
  });
}

TEST_CASE("A rank that leaves early fails the others") {
  // Or with another rank, since one that has got this error leaves, too. Made once: the C++ library's regular
  // expressions share tables that the first ones fill in.
  const std::regex expected("ranks? (0, )?1(, 2)? left early");
  run_ranks(3, [&](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    if (rank == 1) return;
    const auto work = allreduce(engine, data, "x");
    const auto error = expect_throw<Error>([&] { wait(work); }, "rank 1 left");
    CHECK_MESSAGE(std::regex_search(error.what(), expected), error.what());
  });
}

// Work is pending when the program ends: what all ranks have asked for is done, the rest fails at once.
TEST_CASE("At shutdown, work of all ranks finishes and work of one rank fails") {
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<float> shared(4, 1.0F);
    std::vector<float> own(4, 1.0F);
    const auto by_all = allreduce(engine, shared, "by all");
    const auto by_one = allreduce(engine, own, "by rank " + std::to_string(rank));
    engine.shutdown();
    wait(by_all);
    CHECK_MESSAGE(shared[0] == 3.0F, "what all have asked for");
    const auto error = expect_throw<Error>([&] { wait(by_one); }, "what one has asked for");
    check_contains(error.what(), "left early");
  });
}

TEST_CASE("A join fails once another rank has left") {
  for (const int leaver : {0, 1}) {
    run_ranks(3, [leaver](Engine& engine, int rank) {
      if (rank == leaver) return;
      const auto error = expect_throw<Error>([&] { wait(plain(engine, Verb::kJoin)); }, "join");
      check_contains(error.what(), "join() cannot complete: rank");
      check_contains(error.what(), " left early");  // perhaps of ranks 0 and 1, as above
    });
  }
}

EngineOptions impatient(int) {
  EngineOptions options = default_options();
  options.settings.stall_warning_seconds = 0.2;
  options.settings.stall_abort_seconds = 0.5;
  return options;
}

TEST_CASE("A stall ends the job on every rank and shows the stacks") {
  run_ranks(
      3,
      [](Engine& engine, int rank) {
        std::thread answers([&] {
          while (engine.wait_for_question()) engine.answer("stack of " + std::to_string(rank));
        });
        std::vector<float> data(4, 1.0F);
        if (rank != 2) {
          const auto work = allreduce(engine, data, rank == 0 ? "a" : "b");
          const auto error = expect_throw<Error>([&] { wait(work); }, "stall");
          CHECK(error.kind() == ErrorKind::kAborted);
          for (const char* part : {"waits for 'a'", "waits for 'b'", "stack of 2"}) check_contains(error.what(), part);
        } else {
          while (engine.failure().empty()) std::this_thread::yield();
        }
        const auto error = expect_throw<Error>([&] { allreduce(engine, data, "c"); }, "after the failure");
        check_contains(error.what(), "Stalled");
        engine.shutdown();
        answers.join();
      },
      impatient);
}

TEST_CASE("Ranks of different versions do not start") {
  auto transports = make_loopback(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions options = default_options();
      options.program = rank == 0 ? "sirtaki 1" : "sirtaki 2";
      const auto error = expect_throw<Error>(
          [&] { Engine engine(options, make_loopback_fabric(std::move(transports[static_cast<std::size_t>(rank)]))); },
          "versions");
      check_contains(error.what(), "'sirtaki 1'");
      check_contains(error.what(), "'sirtaki 2'");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("A rank that never arrives is named") {
  auto transports = make_loopback(3);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      EngineOptions options = default_options();
      options.settings.start_timeout_seconds = 0.3;
      const auto error = expect_throw<Error>(
          [&] { Engine engine(options, make_loopback_fabric(std::move(transports[static_cast<std::size_t>(rank)]))); },
          "missing rank");
      check_contains(error.what(), "2 of 3 ranks arrived");
      check_contains(error.what(), "missing: rank 1");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sirtaki::testing
