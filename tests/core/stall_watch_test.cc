// Who is told to be missing, when, and how a job ends that goes on no more.
#include "watch/stall_watch.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

#include "expect.h"
#include "negotiation.h"

namespace sirtaki::testing {
namespace {

TEST_CASE("A stall is reported, and later ends the job") {
  Settings settings;
  settings.stall_warning_seconds = 60;
  settings.stall_abort_seconds = 600;
  Fixture f(3, settings);
  StallWatch watch({0, 1, 2}, {"a", "b", "c"}, settings);
  f.submit(0, allreduce("x"));
  f.submit(1, allreduce("y"));
  const auto look_at = [&](int seconds) { return watch.look(f.coordinator, f.now + std::chrono::seconds(seconds)); };
  CHECK_MESSAGE(look_at(59).lines.empty(), "quiet at first");
  const auto first = look_at(61);
  REQUIRE_MESSAGE(first.lines.size() == 1U, "one line");
  check_contains(first.lines[0], "rank");
  CHECK_MESSAGE(look_at(100).lines.empty(), "not more than once a minute");
  REQUIRE(look_at(122).lines.size() == 1U);
  CHECK_MESSAGE(look_at(599).abort_cause.empty(), "not yet");
  const auto asks = look_at(600);
  CHECK_MESSAGE((asks.ask == std::vector<int>{0, 1, 2}), "asks those who are missing something");
  CHECK_MESSAGE(asks.abort_cause.empty(), "asks those who are missing something");
  Announcement answer;
  answer.report = RankStatus{"", "stack of rank 2"};
  f.coordinator.receive(2, answer, f.now);
  CHECK_MESSAGE(look_at(601).abort_cause.empty(), "waits for the others a moment");
  const StallWatch::Report last = look_at(604);
  CHECK_MESSAGE(last.missing == 0, "as long and as many: the lowest");
  const std::string cause = last.abort_cause;
  for (const char* part : {"rank 0 (a) waits for 'x' from train.py:7", "rank 1 (b) waits for 'y'",
                           "rank 2 (c) waits for nothing", "stack of rank 2", "did not answer"}) {
    check_contains(cause, part);
  }
}

// Rank 2 alone asks for something else, and did so first.
TEST_CASE("The rank that strayed is blamed") {
  Settings settings;
  settings.stall_warning_seconds = 60;
  settings.stall_abort_seconds = 600;
  Fixture f(4, settings);
  StallWatch watch({4, 5, 6, 7}, {"a", "b", "c", "d"}, settings);
  Request other = allreduce("a stray");
  other.site = "train.py:9";
  f.submit(2, other);
  f.now += std::chrono::seconds(1);
  for (const int rank : {0, 1, 3}) f.submit(rank, allreduce("x"));
  const auto look_at = [&](int seconds) { return watch.look(f.coordinator, f.now + std::chrono::seconds(seconds)); };
  check_contains(look_at(61).lines.at(0), "'x' has waited 61 s for rank 6; ranks 4, 5, 7 reached it at train.py:7");
  f.now += std::chrono::seconds(590);
  f.submit(0, allreduce("y"));
  f.submit(1, allreduce("y"));
  f.submit(2, allreduce("y"));  // lacks one rank, too, but not for long
  f.now -= std::chrono::seconds(590);
  look_at(600);
  const auto report = look_at(604);
  CHECK_MESSAGE(report.missing == 2, "whom all others wait for");
  CHECK_MESSAGE(report.site == "train.py:9", "its own line");
  const std::string first = report.abort_cause.substr(0, report.abort_cause.find('\n'));
  check_contains(first, "600 s (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never); 'x' from train.py:7 lacks rank 6.");
  const FailureCause cause{FailureKind::kPassedLimit, 6, "c", report.abort_cause, 0, report.site, 4};
  check_contains(cause.describe(), "the first one missing is rank 6 on host c, which waits in train.py:9.");
}

TEST_CASE("The end of a stall is reported once") {
  Fixture f(2);
  StallWatch watch({0, 1}, {"a", "a"}, f.settings);
  f.submit(0, allreduce("x"));
  REQUIRE(watch.look(f.coordinator, f.now + std::chrono::seconds(70)).lines.size() == 1U);
  f.submit(1, allreduce("x"));
  f.decide();
  const auto report = watch.look(f.coordinator, f.now + std::chrono::seconds(90));
  check_contains(report.lines.at(0), "continues after 90 s");
  CHECK_MESSAGE(watch.look(f.coordinator, f.now + std::chrono::seconds(91)).lines.empty(), "once");
}

}  // namespace
}  // namespace sirtaki::testing
