// The promise: waiting for it, and being called back.
#include "queue/work.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace sirtaki::testing {
namespace {

Result result_of(std::int64_t value) {
  Result result;
  result.value = value;
  return result;
}

void calls_back_once_before_or_after_the_end() {
  for (const bool before : {true, false}) {
    Work work;
    int calls = 0;
    const auto note = [&](Work& done) {
      ++calls;
      check_equal(done.result().value, std::int64_t{7}, "value");
      check(done.done(), "done when called back");
    };
    if (before) work.then(note);
    check_equal(calls, 0, "calls before the end");
    work.finish(result_of(7));
    if (!before) work.then(note);
    check_equal(calls, 1, "calls");
  }
}

void a_failure_calls_back_too() {
  Work work;
  std::string seen;
  work.then([&](Work& done) { seen = expect_throw<Error>([&] { done.result(); }, "failed work").what(); });
  work.fail(Error(ErrorKind::kPrecondition, "no luck"));
  check_equal(seen, std::string("no luck"), "cause");
}

void what_the_callback_held_is_let_go() {
  const auto held = std::make_shared<int>(1);
  Work work;
  work.then([held](Work&) {});
  check_equal(held.use_count(), 2L, "owners while pending");
  work.finish(Result());
  check_equal(held.use_count(), 1L, "owners when done");
}

void races_of_finishing_waiting_and_following() {
  for (int round = 0; round < 2000; ++round) {
    auto work = std::make_shared<Work>();
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    threads.emplace_back([work] { work->finish(result_of(3)); });
    threads.emplace_back([work, &calls] { work->then([&calls](Work&) { ++calls; }); });
    threads.emplace_back([work] {
      while (!work->wait()) {
      }
      check_equal(work->result().value, std::int64_t{3}, "value");
    });
    for (std::thread& thread : threads) thread.join();
    check_equal(calls.load(), 1, "calls");
  }
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  calls_back_once_before_or_after_the_end();
  a_failure_calls_back_too();
  what_the_callback_held_is_let_go();
  races_of_finishing_waiting_and_following();
}
