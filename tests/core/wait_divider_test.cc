// The parts of a wait: each moment gets one cause, and the parts add up to the wait, also for random records.
#include "recorder/wait_divider.h"

#include <doctest/doctest.h>

#include <random>

#include "base/types.h"

namespace sirtaki::testing {
namespace {

using Kind = RecordKind;

Record at(std::int64_t time, Kind kind, std::uint16_t group = 0) {
  Record record;
  record.time = time;
  record.kind = static_cast<std::uint8_t>(kind);
  record.group = group;
  return record;
}

// All ranks had arrived when `rank` came, `ago` before `time`, and `lateness` after the first.
Record arrived(std::int64_t time, int rank, std::uint32_t ago, std::uint64_t lateness, std::uint16_t group) {
  Record record = at(time, Kind::kAllArrived, group);
  record.peer = rank;
  record.name = ago;
  record.bytes = lateness;
  return record;
}

WaitDivider divider_of(std::vector<Record> records) {
  WaitDivider divider;
  records.insert(records.begin(), at(1, Kind::kStepEnd));
  divider.add(records);
  return divider;
}

TEST_CASE("A wait behind a plan's barrier") {
  const WaitDivider divider = divider_of({
      at(100, Kind::kSubmitted),
      at(110, Kind::kWaitBegin),
      at(120, Kind::kBatchBegin, kPlannedBit),
      arrived(520, 2, 20, 390, kPlannedBit),  // rank 2 came at 500
      at(540, Kind::kWireBegin, kPlannedBit),
      at(640, Kind::kWireEnd, kPlannedBit),
      at(650, Kind::kBatchEnd, kPlannedBit),
      at(650, Kind::kCompleted),
      at(655, Kind::kWaitEnd),
      at(1001, Kind::kStepEnd),
  });
  CHECK(divider.steps() == 1);
  const StepTimes& step = divider.latest();
  CHECK(step.length == 1000);
  CHECK_MESSAGE(step.wait.queue == 10, "until the engine took it");
  CHECK_MESSAGE(step.wait.late == 380, "120 to 500");
  CHECK_MESSAGE(step.wait.agreement == 20, "500 to 520");
  CHECK_MESSAGE(step.wait.copy == 30, "520 to 540, and 640 to 650");
  CHECK(step.wait.wire == 100);
  CHECK_MESSAGE(step.wait.host == 5, "until the thread went on");
  CHECK(step.wait.sum() == 545);
  CHECK(step.exchange == 130);
  CHECK(step.hidden == 0);
  CHECK(divider.last_ranks().at(2).steps == 1);
  CHECK(divider.last_ranks().at(2).lateness == 390);
}

TEST_CASE("The end of a batch with a single request is the end of that request") {
  Record end = at(300, Kind::kBatchEnd);
  end.name = 7;
  const WaitDivider divider =
      divider_of({at(100, Kind::kSubmitted), at(110, Kind::kWaitBegin), at(120, Kind::kBatchBegin), end,
                  at(340, Kind::kWaitEnd), at(400, Kind::kStepEnd)});
  CHECK(divider.latest().wait.copy == 180);
  CHECK_MESSAGE(divider.latest().wait.host == 40, "nothing is in flight any more");
}

TEST_CASE("A wait for votes, and an exchange that is partly hidden") {
  const WaitDivider divider = divider_of({
      at(100, Kind::kSubmitted),  at(101, Kind::kVoted),      at(150, Kind::kAgreed),    arrived(150, 1, 0, 49, 0),
      at(150, Kind::kBatchReady), at(150, Kind::kBatchBegin), at(200, Kind::kSubmitted), at(201, Kind::kVoted),
      at(250, Kind::kWaitBegin),  at(260, Kind::kBatchEnd),   at(260, Kind::kCompleted), at(300, Kind::kAgreed),
      arrived(300, 0, 10, 99, 0),  // at 290
      at(300, Kind::kBatchReady), at(310, Kind::kBatchBegin), at(350, Kind::kBatchEnd),  at(350, Kind::kCompleted),
      at(350, Kind::kWaitEnd),    at(401, Kind::kStepEnd),
  });
  const StepTimes& step = divider.latest();
  CHECK_MESSAGE(step.wait.copy == 50, "of the first batch 250 to 260, and the second");
  CHECK_MESSAGE(step.wait.late == 30, "260 to 290");
  CHECK(step.wait.agreement == 10);
  CHECK(step.wait.queue == 10);
  CHECK(step.wait.sum() == 100);
  CHECK(step.exchange == 150);
  CHECK(step.hidden == 100);
  CHECK_MESSAGE(divider.last_ranks().count(1) == 0, "the greater lateness counts");
  CHECK(divider.last_ranks().at(0).lateness == 99);
}

TEST_CASE("A program that waits elsewhere: what it could not hide") {
  const WaitDivider divider = divider_of({
      at(100, Kind::kSubmitted),
      at(110, Kind::kBatchBegin),
      at(200, Kind::kSubmitted),
      at(300, Kind::kBatchEnd),
      at(300, Kind::kCompleted),
      at(310, Kind::kBatchBegin),
      at(400, Kind::kBatchEnd),
      at(400, Kind::kCompleted),
      at(500, Kind::kStepEnd),
  });
  CHECK_MESSAGE(divider.latest().wait.sum() == 200, "from the last submission to the last completion");
  CHECK(divider.latest().exchange == 280);
  CHECK(divider.latest().hidden == 90);
}

TEST_CASE("A step without a wait in a program that waits: all was hidden") {
  const WaitDivider divider = divider_of({
      at(100, Kind::kSubmitted),
      at(110, Kind::kBatchBegin),
      at(120, Kind::kWaitBegin),
      at(200, Kind::kBatchEnd),
      at(200, Kind::kCompleted),
      at(200, Kind::kWaitEnd),
      at(500, Kind::kStepEnd),
      at(600, Kind::kSubmitted),
      at(610, Kind::kBatchBegin),
      at(700, Kind::kBatchEnd),
      at(700, Kind::kCompleted),
      at(800, Kind::kStepEnd),
  });
  CHECK(divider.latest().wait.sum() == 0);
  CHECK(divider.latest().exchange == 90);
  CHECK(divider.latest().hidden == 90);
}

TEST_CASE("A thread without a core is no wire") {
  Record end = at(300, Kind::kWaitEnd);
  end.bytes = 150;
  const WaitDivider divider =
      divider_of({at(90, Kind::kSubmitted), at(95, Kind::kBatchBegin), at(100, Kind::kWaitBegin),
                  at(110, Kind::kWireBegin), at(290, Kind::kWireEnd), end, at(400, Kind::kStepEnd)});
  CHECK(divider.latest().wait.host == 150);
  CHECK(divider.latest().wait.wire == 30);
  CHECK(divider.latest().wait.copy == 20);
}

TEST_CASE("After a gap the step under way does not count") {
  WaitDivider divider = divider_of({at(100, Kind::kSubmitted), at(110, Kind::kWaitBegin)});
  divider.forget();
  const std::vector<Record> rest = {at(400, Kind::kWaitEnd), at(500, Kind::kStepEnd), at(700, Kind::kStepEnd)};
  divider.add(rest);
  CHECK(divider.steps() == 1);
  CHECK(divider.latest().length == 200);
  CHECK(divider.latest().wait.sum() == 0);
}

TEST_CASE("Joins are no requests that a rank waits for") {
  Record join = at(100, Kind::kSubmitted);
  join.verb = static_cast<std::uint8_t>(Verb::kJoin);
  const WaitDivider divider =
      divider_of({join, at(200, Kind::kWaitBegin), at(300, Kind::kWaitEnd), at(400, Kind::kStepEnd)});
  CHECK(divider.latest().wait.host == 100);
}

TEST_CASE("A wait to receive is one for data, unless a collective explains it") {
  Record submitted = at(100, Kind::kSubmitted);
  submitted.verb = static_cast<std::uint8_t>(Verb::kReceive);
  Record completed = at(400, Kind::kCompleted);
  completed.verb = submitted.verb;
  const WaitDivider divider = divider_of({
      submitted,
      at(110, Kind::kWaitBegin),
      at(200, Kind::kSubmitted),
      at(250, Kind::kCompleted),
      completed,
      at(405, Kind::kWaitEnd),
      at(1001, Kind::kStepEnd),
  });
  CHECK_MESSAGE(divider.latest().wait.wire == 240, "110 to 200, and 250 to 400");
  CHECK_MESSAGE(divider.latest().wait.queue == 50, "200 to 250");
  CHECK_MESSAGE(divider.latest().wait.host == 5, "until the thread went on");
}

// Any records, in any order, with the waits of three threads among them.
std::vector<Record> any_records(std::mt19937& random, std::int64_t& waited) {
  std::vector<Record> records;
  std::int64_t time = 10;
  int waiting = 0;
  const auto below = [&](std::uint32_t limit) { return random() % limit; };
  for (int i = 0; i < 400; ++i) {
    const std::int64_t pause = below(100);
    if (waiting > 0) waited += pause;
    time += pause;
    const auto kind = static_cast<Kind>(below(static_cast<std::uint32_t>(kRecordKindNames.size())));
    if (kind == Kind::kWaitEnd && waiting == 0) continue;
    if (kind == Kind::kWaitBegin && waiting == 3) continue;
    waiting += kind == Kind::kWaitBegin ? 1 : kind == Kind::kWaitEnd ? -1 : 0;
    Record record = at(time, kind, static_cast<std::uint16_t>(below(2) == 0 ? kPlannedBit : below(2)));
    record.verb = static_cast<std::uint8_t>(below(kVerbCount));
    record.peer = static_cast<int>(below(4)) - 1;
    record.bytes = below(200);
    record.name = below(3) == 0 ? kUnknownAge : below(300);
    records.push_back(record);
  }
  while (waiting-- > 0) records.push_back(at(time, Kind::kWaitEnd));
  records.push_back(at(time, Kind::kStepEnd));
  return records;
}

TEST_CASE("The parts add up to the wait for random records") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::int64_t waited = 0;
    std::vector<Record> records = any_records(random, waited);
    // So that each step is one in which the program waits by Engine::wait().
    std::erase_if(records, [](const Record& r) { return r.kind == static_cast<std::uint8_t>(Kind::kStepEnd); });
    records.insert(records.begin(), {at(5, Kind::kStepEnd), at(6, Kind::kWaitBegin), at(6, Kind::kWaitEnd)});
    records.push_back(at(records.back().time, Kind::kStepEnd));
    WaitDivider divider;
    const std::span all(records);
    const std::size_t cut = random() % all.size();  // in two parts, as a reader gets them
    divider.add(all.first(cut));
    divider.add(all.subspan(cut));
    REQUIRE(divider.steps() == 1);
    const StepTimes& step = divider.latest();
    CHECK_MESSAGE(step.wait.sum() == waited, "round ", round);
    for (const std::int64_t part : {step.wait.late, step.wait.agreement, step.wait.queue, step.wait.copy,
                                    step.wait.wire, step.wait.host, step.hidden}) {
      CHECK(part >= 0);
    }
    CHECK(step.hidden <= step.exchange);
    CHECK(step.wait.sum() <= step.length);
  }
}

}  // namespace
}  // namespace sirtaki::testing
