// Which of several causes of failure a rank keeps, and when its other threads learn of it.
#include "engine/failure_state.h"

#include <thread>
#include <vector>

#include "expect.h"

namespace sirtaki::testing {
namespace {

FailureCause cause_of(const std::string& text) {
  FailureCause cause;
  cause.text = text;
  return cause;
}

struct Fixture {
  std::string text() const { return state.cause() ? state.cause()->text : ""; }

  std::vector<std::string> changes;
  FailureState state{[this](const FailureCause& cause) { changes.push_back(cause.text); }};
};

TEST_CASE("The first cause of this rank stays") {
  Fixture f;
  CHECK(!f.state.cause());
  f.state.record(cause_of("first"));
  f.state.record(cause_of("second"));
  f.state.adopt(JobFailure(cause_of("third"), false));
  CHECK(f.text() == "first");
  CHECK(!f.state.agreed());
  CHECK(f.changes == std::vector<std::string>{"first"});
}

TEST_CASE("The agreed cause takes its place once") {
  Fixture f;
  f.state.record(cause_of("own"));
  f.state.adopt(JobFailure(cause_of("agreed"), true));
  f.state.adopt(JobFailure(cause_of("late"), true));
  f.state.record(cause_of("later"));
  CHECK(f.text() == "agreed");
  CHECK(f.state.agreed());
  CHECK(f.changes == std::vector<std::string>{"own", "agreed"});
  const auto thrown = expect_throw<JobFailure>([&] { f.state.raise(); }, "raise");
  CHECK(thrown.agreed());
  CHECK(thrown.cause().text == "agreed");
}

// A call that is refused because of the change must not come before the cause can be announced, nor after it is known.
TEST_CASE("A cause is announced before it can be read") {
  std::atomic<bool> announced{false};
  FailureState state([&](const FailureCause&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    announced = true;
  });
  std::thread fails([&] { state.record(cause_of("x")); });
  while (!state.cause()) std::this_thread::yield();
  CHECK(announced);
  fails.join();
}

TEST_CASE("A thread waits until the other ranks are notified") {
  Fixture f;
  f.state.record(cause_of("own"));
  std::thread notifies([&] {
    f.state.adopt(JobFailure(cause_of("agreed"), true));
    f.state.set_notified();
  });
  CHECK(f.state.wait_until_notified(std::chrono::hours(1)).text == "agreed");
  notifies.join();
  Fixture alone;
  alone.state.record(cause_of("own"));
  CHECK(alone.state.wait_until_notified(std::chrono::milliseconds(1)).text == "own");
}

}  // namespace
}  // namespace sirtaki::testing
