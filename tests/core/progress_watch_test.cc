// When a rank reports that nothing moves, and when it takes the coordinator for lost.
#include "watch/progress_watch.h"

#include "base/failure_cause.h"
#include "check.h"

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

void data_that_moves_does_not_stand_still() {
  ProgressWatch watch = make_watch();
  Clock::time_point now{};
  watch.on_data_moved();
  check(!watch.data_stands_still(now), "it has moved");
  check(!watch.data_stands_still(now + milliseconds(900)), "within the patience");
  check(watch.data_stands_still(now + milliseconds(1100)), "after the patience");
  watch.on_data_moved();
  check(!watch.data_stands_still(now + milliseconds(1200)), "it moves again");
}

void only_changes_are_reported() {
  ProgressWatch watch = make_watch();
  check(!watch.changed({}), "nothing stands still");
  check(!watch.has_reported(), "nothing was reported");
  const auto first = watch.changed({{"x", "train.py:7"}});
  check(first && first->size() == 1 && first->front().title == "x", "x stands still");
  check(watch.has_reported(), "the coordinator knows of x");
  check(!watch.changed({{"x", "train.py:7"}}), "the coordinator knows already");
  const auto last = watch.changed({});
  check(last && last->empty(), "x moves again");
  check(!watch.has_reported(), "the coordinator knows of nothing");
}

// Looks every 250 ms for so long; the times at which the coordinator was asked, in milliseconds.
std::vector<int> looks(ProgressWatch& watch, Clock::time_point from, int milliseconds_long) {
  std::vector<int> asked;
  for (int at = 0; at <= milliseconds_long; at += 250) {
    if (watch.must_ask_coordinator(true, from + milliseconds(at))) asked.push_back(at);
  }
  return asked;
}

void a_silent_coordinator_is_asked_and_then_lost() {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  const std::vector<int> asked = looks(watch, start, 9'500);
  check_equal(asked.size(), std::size_t{1}, "questions");
  check_equal(asked.front(), 5'250, "after half of the limit");
  const auto failure = expect_throw<JobFailure>([&] { looks(watch, start + milliseconds(9'750), 1'000); }, "no answer");
  check_contains(failure.cause().text, "rank 4 (a), which coordinates, has not answered rank 7 for 10 s");
  check_equal(failure.cause().rank, 4, "the rank that is blamed");
}

void a_verdict_is_an_answer() {
  ProgressWatch watch = make_watch();
  Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
  for (int round = 0; round < 3; ++round, now += milliseconds(9'750)) {
    check_equal(looks(watch, now, 9'500).size(), std::size_t{1}, "questions in this round");
    watch.on_verdict();
  }
}

void a_rank_that_waits_for_nothing_asks_nothing() {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  for (int at = 0; at < 60'000; at += 250) {
    check(!watch.must_ask_coordinator(false, start + milliseconds(at)), "asked for nothing");
  }
}

void a_process_that_was_stopped_begins_anew() {
  ProgressWatch watch = make_watch();
  const Clock::time_point start = Clock::time_point{} + std::chrono::hours(1);
  looks(watch, start, 4'000);
  check(!watch.must_ask_coordinator(true, start + std::chrono::minutes(5)), "it was this rank that did not look");
}

void without_limits_nothing_is_asked() {
  ProgressWatch watch = make_watch(0, 0);
  check(looks(watch, Clock::time_point{} + std::chrono::hours(1), 600'000).empty(), "asked without a limit");
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  data_that_moves_does_not_stand_still();
  only_changes_are_reported();
  a_silent_coordinator_is_asked_and_then_lost();
  a_verdict_is_an_answer();
  a_rank_that_waits_for_nothing_asks_nothing();
  a_process_that_was_stopped_begins_anew();
  without_limits_nothing_is_asked();
}
