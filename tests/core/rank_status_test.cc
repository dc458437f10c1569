// How the ranks of a job say what they are doing, to whoever asks one of them.
#include "agreement/rank_status.h"

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>

#include "engine_jobs.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

std::shared_ptr<Work> asked_for(Engine& engine, std::vector<float>& data, const std::string& name) {
  Request request = request_of(Verb::kAllreduce, name, {static_cast<std::int64_t>(data.size())});
  request.site = "train.py:7";
  return engine.queue().put(0, {std::move(request), {{data.data(), data.data()}}});
}

// Rank 1's interpreter answers, rank 2's does not, and rank 0 waits for both.
TEST_CASE("Any rank reports the state of all ranks") {
  std::barrier all(3);
  run_ranks(
      3,
      [&](Engine& engine, int rank) {
        std::thread answers([&] {
          while (rank != 2 && engine.wait_for_question()) engine.answer("stack of " + std::to_string(rank));
        });
        std::vector<float> data(4, 1.0F);
        wait(asked_for(engine, data, "first"));
        std::shared_ptr<Work> second;
        if (rank == 0) second = asked_for(engine, data, "second");
        all.arrive_and_wait();
        if (rank == 1) {
          const std::string job_status = engine.job_status();
          for (const char* part :
               {"rank 0 on host ", "collectives finished: 1, the last allreduce 'first'", "1 pending",
                "allreduce 'second' from train.py:7 for ", ": waits for other ranks", "'second' lacks ranks 1, 2 for ",
                "stack of 0", "rank 1 on host ", "none pending", "stack of 1", "rank 2 on host ", "taken by force"}) {
            check_contains(job_status, part);
          }
          check_contains(engine.report(), "stack of 1");
          CHECK_MESSAGE(engine.report().find("rank 0") == std::string::npos, "of itself only");
        }
        all.arrive_and_wait();
        if (rank != 0) second = asked_for(engine, data, "second");
        wait(second);
        engine.shutdown();
        CHECK_MESSAGE(engine.report() == "the job has ended", "after the end");
        answers.join();
      },
      [](int) {
        EngineOptions options = default_options();
        options.stacks_by_force = [] { return "taken by force"; };
        return options;
      });
}

TEST_CASE("A failed job reports its cause") {
  run_ranks(2, [](Engine& engine, int rank) {
    if (rank == 1) engine.fail_job({FailureKind::kException, -1, "", "boom", 0, "train.py:7", -1});
    while (engine.failure().empty()) std::this_thread::yield();
    for (const std::string& text : {engine.report(), engine.job_status()}) {
      check_contains(text, "the job has failed: rank 1 on host ");
      check_contains(text, "in train.py:7: boom");
    }
  });
}

TEST_CASE("The oldest pending calls come first, and the list is short") {
  const Clock::time_point now{std::chrono::seconds(100)};
  std::vector<PendingCall> pending;
  for (int i = 0; i < 10; ++i) {
    pending.push_back({"t" + std::to_string(i), Verb::kBroadcast, "", now - std::chrono::seconds(i), "under way"});
  }
  const std::string text = list_pending(pending, now);
  CHECK_MESSAGE(text.starts_with("\n    broadcast 't9' for 9.0 s: under way\n    broadcast 't8' for 8.0 s"), text);
  CHECK_MESSAGE(text.ends_with("\n    and 2 more"), text);
}

}  // namespace
}  // namespace sirtaki::testing
