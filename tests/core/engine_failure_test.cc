// What goes wrong in a job of whole engines ends as an error on every rank.
#include <array>
#include <barrier>
#include <cmath>

#include "check.h"
#include "engine_jobs.h"

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

void a_failing_collective_ends_the_job_with_its_cause() {
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
void ranks_that_fail_at_once_agree_on_one_cause() {
  run_ranks(4, [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    if (rank % 2 == 1) {
      FailureCause own{
          FailureKind::kException, -1, "", "ValueError: from " + std::to_string(rank), 0, "train.py:7", -1};
      const FailureCause agreed = engine.fail_job(own);
      check(agreed.rank == 1 || agreed.rank == 3, "one of those that failed");
      check_equal(agreed.text, "ValueError: from " + std::to_string(agreed.rank), "its own text");
      check(agreed.witness == agreed.rank && agreed.site == "train.py:7" && !agreed.host.empty(), "filled in");
      check(engine.cause() == agreed, "known from now on");
    } else {
      const auto error = expect_throw<Error>([&] { wait(allreduce(engine, data, "x")); }, "failure");
      check(error.kind() == ErrorKind::kAborted, "kind");
    }
    while (!engine.cause()) std::this_thread::yield();
    static std::array<std::string, 4> told;
    told[static_cast<std::size_t>(rank)] = engine.cause()->describe();
    static std::barrier all(4);
    all.arrive_and_wait();
    check_equal(told[static_cast<std::size_t>(rank)], told[0], "the same on every rank");
    check_contains(told[0], " in train.py:7: ValueError: from ");
    const auto error = expect_throw<Error>([&] { allreduce(engine, data, "y"); }, "after the failure");
    check_equal(std::string(error.what()), told[0], "what later calls say");
  });
}

void a_rank_that_goes_away_fails_the_others() {
  auto transports = make_loopback(2);
  std::thread leaves([&] {
    Engine engine(default_options(), make_loopback_fabric(std::move(transports[1])));
    engine.shutdown();  // would wait for the other rank for ever
    check_contains(engine.failure(), "rank 0 went away without shutdown()");
  });
  {
    Engine engine(default_options(), make_loopback_fabric(std::move(transports[0])));
  }
  leaves.join();
}

void mismatch_is_an_error_on_every_rank_and_nothing_else() {
  run_ranks(3, [](Engine& engine, int rank) {
    for (int i = 0; i < 10; ++i) {
      std::vector<float> data(rank == 1 ? 4 : 6, 1.0F);
      Request request = request_of(Verb::kAllreduce, "x", rank == 1 ? Shape{4} : Shape{6});
      const auto work = engine.submit(0, request, {{data.data(), data.data()}});
      const auto error = expect_throw<Error>([&] { wait(work); }, "shape mismatch");
      check(error.kind() == ErrorKind::kPrecondition, "kind");
      check_contains(error.what(), "shape differs");
      std::vector<float> fine(3, 1.0F);
      wait(allreduce(engine, fine, "y"));
      check_equal(fine[0], 3.0F, "the next call works");
    }
  });
}

void bad_calls_are_refused_at_once() {
  run_ranks(2, [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    const auto refused = [&](Request request, const std::string& part, int group = 0) {
      std::vector<Address> addresses(request.tensors.size(), Address{data.data(), data.data()});
      const auto error = expect_throw<Error>([&] { engine.submit(group, request, addresses); }, part);
      check(error.kind() == ErrorKind::kInvalidArgument, "kind of: " + part);
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
    check(error.kind() == ErrorKind::kInvalidArgument, "kind");
    wait(plain(engine, Verb::kBarrier));  // both have tried
    wait(allreduce(engine, other, "twice" + std::to_string(1 - rank)));
    wait(first);
    wait(allreduce(engine, other, "twice0"));
    check_equal(other[0], 4.0F, "the name is free again");
  });
}

void leaving_early_fails_the_others() {
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0F);
    if (rank == 1) return;
    const auto work = allreduce(engine, data, "x");
    const auto error = expect_throw<Error>([&] { wait(work); }, "rank 1 left");
    check_contains(error.what(), "1 left early");  // or "ranks 0, 1": who has been told so leaves, too
  });
}

// Work is pending when the program ends: what all ranks have asked for is done, the rest fails at once.
void what_is_pending_at_the_end_ends() {
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<float> shared(4, 1.0F);
    std::vector<float> own(4, 1.0F);
    const auto by_all = allreduce(engine, shared, "by all");
    const auto by_one = allreduce(engine, own, "by rank " + std::to_string(rank));
    engine.shutdown();
    wait(by_all);
    check_equal(shared[0], 3.0F, "what all have asked for");
    const auto error = expect_throw<Error>([&] { wait(by_one); }, "what one has asked for");
    check_contains(error.what(), "left early");
  });
}

void a_join_fails_once_another_rank_has_left() {
  for (const int leaver : {0, 1}) {
    run_ranks(3, [leaver](Engine& engine, int rank) {
      if (rank == leaver) return;
      const auto error = expect_throw<Error>([&] { wait(plain(engine, Verb::kJoin)); }, "join");
      check_contains(error.what(), "join() cannot complete: rank " + std::to_string(leaver) + " left early");
    });
  }
}

EngineOptions impatient(int) {
  EngineOptions options = default_options();
  options.settings.stall_warning_seconds = 0.2;
  options.settings.stall_abort_seconds = 0.5;
  return options;
}

void a_stall_ends_on_every_rank_with_stacks() {
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
          check(error.kind() == ErrorKind::kAborted, "kind");
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

void different_programs_do_not_start() {
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

void a_rank_that_never_comes_is_named() {
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

int main() {
  using namespace sirtaki::testing;
  a_failing_collective_ends_the_job_with_its_cause();
  ranks_that_fail_at_once_agree_on_one_cause();
  a_rank_that_goes_away_fails_the_others();
  mismatch_is_an_error_on_every_rank_and_nothing_else();
  bad_calls_are_refused_at_once();
  leaving_early_fails_the_others();
  what_is_pending_at_the_end_ends();
  a_join_fails_once_another_rank_has_left();
  a_stall_ends_on_every_rank_with_stacks();
  different_programs_do_not_start();
  a_rank_that_never_comes_is_named();
}
