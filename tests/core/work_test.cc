// The promise: waiting for it, and being called back.
#include "queue/work.h"

#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "expect.h"

namespace sirtaki::testing {
namespace {

Result result_of(std::int64_t value) {
  Result result;
  result.value = value;
  return result;
}

TEST_CASE("The callback runs once, whether it is set before or after the end") {
  for (const bool before : {true, false}) {
    Work work;
    int calls = 0;
    const auto note = [&](Work& done) {
      ++calls;
      CHECK(done.result().value == 7);
      CHECK_MESSAGE(done.done(), "done when called back");
    };
    if (before) work.then(note);
    CHECK_MESSAGE(calls == 0, "calls before the end");
    work.finish(result_of(7));
    if (!before) work.then(note);
    CHECK(calls == 1);
  }
}

TEST_CASE("Failed work calls back too") {
  Work work;
  std::string seen;
  work.then([&](Work& done) { seen = expect_throw<Error>([&] { done.result(); }, "failed work").what(); });
  work.fail(Error(ErrorKind::kPrecondition, "no luck"));
  CHECK(seen == "no luck");
}

TEST_CASE("Finished work lets its callback go") {
  const auto held = std::make_shared<int>(1);
  Work work;
  work.then([held](Work&) {});
  CHECK_MESSAGE(held.use_count() == 2L, "owners while pending");
  work.finish(Result());
  CHECK_MESSAGE(held.use_count() == 1L, "owners when done");
}

TEST_CASE("Finishing, waiting and setting a callback may race") {
  for (int round = 0; round < 2000; ++round) {
    auto work = std::make_shared<Work>();
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    threads.emplace_back([work] { work->finish(result_of(3)); });
    threads.emplace_back([work, &calls] { work->then([&calls](Work&) { ++calls; }); });
    threads.emplace_back([work] {
      while (!work->wait()) {
      }
      CHECK(work->result().value == 3);
    });
    for (std::thread& thread : threads) thread.join();
    CHECK(calls.load() == 1);
  }
}

}  // namespace
}  // namespace sirtaki::testing
