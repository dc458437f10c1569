// When a rank reports that nothing moves, and when it takes the coordinator for lost.
#include "watch/progress_watch.h"

#include <doctest/doctest.h>

#include "agreement/failure_cause.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

using std::chrono::milliseconds;

Settings limits(double warning, double abort) {
  Settings settings;
  settings.stall_warning_seconds = warning;
  settings.stall_abort_seconds = abort;
  return settings;
}

ProgressWatch make_watch(double warning = 60, double abort = 10) {
  return {1, {4, 7}, {"a", "b"}, limits(warning, abort)};
}

TEST_CASE("Data that moves does not stand still") {
  ProgressWatch watch = make_watch();
  Clock::time_point now{};
  watch.on_data_moved();
  CHECK_MESSAGE(!watch.data_stands_still(now), "it has moved");
  CHECK_MESSAGE(!watch.data_stands_still(now + milliseconds(900)), "within the patience");
  CHECK_MESSAGE(watch.data_stands_still(now + milliseconds(1100)), "after the patience");
  watch.on_data_moved();
  CHECK_MESSAGE(!watch.data_stands_still(now + milliseconds(1200)), "it moves again");
}

TEST_CASE("Only changes are reported") {
  ProgressWatch watch = make_watch();
  CHECK_MESSAGE(!watch.changed({}), "nothing stands still");
  CHECK_MESSAGE(!watch.has_reported(), "nothing was reported");
  const auto first = watch.changed({{"x", "train.py:7"}});
  CHECK_MESSAGE((first && first->size() == 1 && first->front().title == "x"), "x stands still");
  CHECK_MESSAGE(watch.has_reported(), "the coordinator knows of x");
  CHECK_MESSAGE(!watch.changed({{"x", "train.py:7"}}), "the coordinator knows already");
  const auto last = watch.changed({});
  CHECK_MESSAGE((last && last->empty()), "x moves again");
  CHECK_MESSAGE(!watch.has_reported(), "the coordinator knows of nothing");
}

// Looks every 250 ms for so long; the times at which the coordinator was asked, in milliseconds.
std::vector<int> looks(ProgressWatch& watch, Clock::time_point from, int milliseconds_long) {
  std::vector<int> asked;
  for (int at = 0; at <= milliseconds_long; at += 250) {
    if (watch.must_ask_coordinator(true, from + milliseconds(at))) asked.push_back(at);
  }
  return asked;
}

TEST_CASE("A silent coordinator is asked and then lost") {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  const std::vector<int> asked = looks(watch, start, 9'500);
  CHECK_MESSAGE(asked.size() == std::size_t{1}, "questions");
  CHECK_MESSAGE(asked.front() == 5'250, "after half of the limit");
  const auto failure = expect_throw<JobFailure>([&] { looks(watch, start + milliseconds(9'750), 1'000); }, "no answer");
  check_contains(failure.cause().text, "rank 4 (a), which coordinates, has not answered rank 7 for 10 s");
  CHECK_MESSAGE(failure.cause().rank == 4, "the rank that is blamed");
}

// Looks every 250 ms for so long; the lines of warnings.
std::vector<std::string> warnings(ProgressWatch& watch, Clock::time_point from, int milliseconds_long) {
  std::vector<std::string> lines;
  for (int at = 0; at <= milliseconds_long; at += 250) {
    watch.must_ask_coordinator(true, from + milliseconds(at));
    if (const std::string line = watch.warning(from + milliseconds(at)); !line.empty()) lines.push_back(line);
  }
  return lines;
}

TEST_CASE("Rank 1 warns of a silent coordinator, again and again") {
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  ProgressWatch watch = make_watch(2, 10);
  const std::vector<std::string> lines = warnings(watch, start, 9'500);
  REQUIRE(lines.size() == 4);
  check_contains(lines[0], "rank 4 (a), which coordinates, has not answered for 3 s");
  check_contains(lines[0], "the job ends after 10 s");
  ProgressWatch other{2, {4, 7, 8}, {"a", "b", "b"}, limits(2, 10)};
  CHECK_MESSAGE(warnings(other, start, 9'500).empty(), "one rank's warning is enough");
}

TEST_CASE("A verdict is an answer") {
  ProgressWatch watch = make_watch();
  Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
  for (int round = 0; round < 3; ++round, now += milliseconds(9'750)) {
    CHECK_MESSAGE(looks(watch, now, 9'500).size() == std::size_t{1}, "questions in this round");
    watch.on_verdict();
  }
}

TEST_CASE("A rank that waits for nothing asks nothing") {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  for (int at = 0; at < 60'000; at += 250) {
    CHECK_MESSAGE(!watch.must_ask_coordinator(false, start + milliseconds(at)), "asked for nothing");
  }
}

TEST_CASE("A process that was stopped begins anew") {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  looks(watch, start, 4'000);
  CHECK_MESSAGE(!watch.must_ask_coordinator(true, start + std::chrono::minutes(5)),
                "it was this rank that did not look");
}

TEST_CASE("Without limits nothing is asked") {
  ProgressWatch watch = make_watch(0, 0);
  CHECK_MESSAGE(looks(watch, Clock::time_point{} + std::chrono::hours(1), 600'000).empty(), "asked without a limit");
}

}  // namespace
}  // namespace sirtaki::testing
