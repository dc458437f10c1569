// Rank 0's additional part of a group: stalls become lines and then the end of the job, a question becomes a status.
#include "engine/group_coordinator.h"

#include <doctest/doctest.h>

#include "expect.h"
#include "negotiation.h"

namespace sirtaki::testing {
namespace {

constexpr std::chrono::seconds kSecond{1};

Settings limits() {
  Settings settings;
  settings.stall_warning_seconds = 2;
  settings.stall_abort_seconds = 5;
  return settings;
}

Announcement vote_for(const std::string& name) {
  Announcement announcement;
  announcement.votes = {{.request = allreduce(name)}};
  return announcement;
}

Announcement status(const std::string& doing) {
  Announcement announcement;
  announcement.report = RankStatus{doing, "stack of " + doing};
  return announcement;
}

struct Job {
  GroupCoordinator coordinator{{5, 6}, {"a", "b"}, limits()};
  Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
};

TEST_CASE("An agreed request names the last voter and its lateness") {
  Job job;
  job.coordinator.receive(1, vote_for("x"), job.now);
  CHECK_MESSAGE(job.coordinator.has_to_watch(), "x waits for rank 0");
  job.coordinator.receive(0, vote_for("x"), job.now + kSecond);
  Verdict verdict = job.coordinator.decide(false, false);
  CHECK_MESSAGE(verdict.batches.size() == std::size_t{1}, "batches");
  CHECK_MESSAGE(verdict.batches[0][0].arrival.last == 0, "the member that voted last");
  CHECK_MESSAGE(verdict.batches[0][0].arrival.spread == kSecond, "a second after the first vote");
  verdict.arrivals = {arrival_of(verdict.batches[0], job.now + 3 * kSecond)};
  const BatchArrival sent = decode_verdict(encode(verdict)).arrivals.at(0);
  CHECK_MESSAGE(sent.last == 0, "the last member, as the other ranks get it");
  CHECK_MESSAGE(sent.spread == kSecond, "its lateness");
  CHECK_MESSAGE(sent.ago == 2 * kSecond, "the time since its vote");
  CHECK_MESSAGE(!job.coordinator.has_to_watch(), "nothing waits");
}

TEST_CASE("A stall is reported and then ends the job") {
  Job job;
  job.coordinator.receive(0, vote_for("x"), job.now);
  CHECK_MESSAGE(job.coordinator.watch(job.now + kSecond).empty(), "before the warning time");
  const std::vector<std::string> lines = job.coordinator.watch(job.now + 3 * kSecond);
  CHECK_MESSAGE(lines.size() == std::size_t{1}, "lines");
  check_contains(lines[0], "'x' has waited 3 s for rank 6");
  CHECK_MESSAGE(job.coordinator.decide(false, false).alive, "a heartbeat, so that a rank that lost a verdict notices");
  job.coordinator.watch(job.now + 6 * kSecond);
  CHECK_MESSAGE((job.coordinator.decide(false, false).asked == std::vector<std::int64_t>{1}),
                "rank 1 of the group is asked");
  job.coordinator.receive(1, status("sleeping"), job.now + 7 * kSecond);
  job.coordinator.watch(job.now + 7 * kSecond);
  const Verdict verdict = job.coordinator.decide(false, false);
  CHECK_MESSAGE((verdict.failure && verdict.failure->rank == 6), "rank 6 is blamed");
  check_contains(verdict.failure->text, "stack of sleeping");
}

TEST_CASE("A status is composed of all answers") {
  Job job;
  Announcement question;
  question.wants_job_status = true;
  job.coordinator.receive(1, question, job.now);
  job.coordinator.watch(job.now);
  CHECK_MESSAGE(job.coordinator.decide(false, false).asked.size() == std::size_t{2}, "ranks that are asked");
  for (int rank = 0; rank < 2; ++rank) job.coordinator.receive(rank, status("well " + std::to_string(rank)), job.now);
  job.coordinator.watch(job.now + kSecond);
  const std::string text = job.coordinator.decide(false, false).job_status;
  check_contains(text, "rank 0 on host a, well 0");
  check_contains(text, "rank 1 on host b, well 1");
}

TEST_CASE("Another fusion threshold is noticed once") {
  Job job;
  CHECK_MESSAGE(job.coordinator.set_fusion_threshold(123), "a new threshold");
  CHECK_MESSAGE(!job.coordinator.set_fusion_threshold(123), "the same again");
}

}  // namespace
}  // namespace sirtaki::testing
