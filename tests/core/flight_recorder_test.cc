// The flight recorder: what the records hold, which ones stay, and what a reader gets while threads write.
#include "recorder/flight_recorder.h"

#include <doctest/doctest.h>

#include <thread>

#include "engine_jobs.h"

namespace sirtaki::testing {
namespace {

RecordKind kind_of(const Record& record) { return static_cast<RecordKind>(record.kind); }

std::vector<Record> of_kind(const std::vector<Record>& records, RecordKind kind) {
  std::vector<Record> found;
  std::ranges::copy_if(records, std::back_inserter(found), [&](const Record& r) { return kind_of(r) == kind; });
  return found;
}

// A record in which each field shows whether it belongs to the others.
Record uniform(std::uint64_t number) {
  Record record;
  record.time = static_cast<std::int64_t>(number);
  record.bytes = number;
  record.number = static_cast<std::uint32_t>(number);
  record.peer = static_cast<std::int32_t>(number);
  record.name = static_cast<std::uint32_t>(number);
  return record;
}

bool is_uniform(const Record& record) {
  const auto number = static_cast<std::uint32_t>(record.time);
  return record.bytes == static_cast<std::uint64_t>(record.time) && record.number == number && record.name == number &&
         record.peer == static_cast<std::int32_t>(number);
}

TEST_CASE("A ring keeps the newest records") {
  RecordRing ring(8, RecordRing::Writers::kOne);
  std::vector<Record> records;
  std::uint64_t lost = 0;
  for (std::uint64_t i = 0; i < 5; ++i) ring.write(uniform(i));
  CHECK(ring.read(0, records, lost) == 5);
  CHECK(records.size() == 5);
  CHECK(lost == 0);
  for (std::uint64_t i = 5; i < 21; ++i) ring.write(uniform(i));
  records.clear();
  CHECK(ring.read(5, records, lost) == 21);
  REQUIRE(records.size() == 7);
  CHECK(lost == 9);
  CHECK(records.front().time == 14);
  CHECK(records.back().time == 20);
  records.clear();
  CHECK(ring.read(21, records, lost) == 21);
  CHECK(records.empty());
}

void check_reading_while_writing(RecordRing::Writers writers, std::size_t count) {
  RecordRing ring(16, writers);
  constexpr std::uint64_t kEach = 20'000;
  std::atomic<std::size_t> running{count};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) ring.write(uniform(i * count + t));
      --running;
    });
  }
  std::uint64_t next = 0;
  std::uint64_t lost = 0;
  std::uint64_t seen = 0;
  bool whole = true;
  for (bool last = false; !last;) {
    last = running == 0;
    std::vector<Record> records;
    next = ring.read(next, records, lost);
    seen += records.size();
    for (const Record& record : records) whole &= is_uniform(record);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_MESSAGE(whole, "no record is torn");
  CHECK_MESSAGE(seen + lost == kEach * count, "each record is read or counted as lost");
}

TEST_CASE("A reader gets whole records while one thread writes") {
  check_reading_while_writing(RecordRing::Writers::kOne, 1);
}

TEST_CASE("A reader gets whole records while several threads write") {
  check_reading_while_writing(RecordRing::Writers::kSeveral, 3);
}

TEST_CASE("The recorder takes at most 4 MiB") { CHECK(FlightRecorder().bytes() <= std::size_t{4} << 20); }

TEST_CASE("More threads than rings lose no record") {
  FlightRecorder recorder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) recorder.on_step_ended();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const FlightRecorder::Reading reading = recorder.read({});
  CHECK(reading.lost == 0);
  CHECK(of_kind(reading.records, RecordKind::kStepEnd).size() == 1200);
  CHECK(std::ranges::is_sorted(reading.records, {}, &Record::time));
}

TEST_CASE("Times are those of the clock") {
  FlightRecorder recorder;
  const std::int64_t before = TickClock::nanoseconds();
  recorder.on_step_ended();
  const std::int64_t after = TickClock::nanoseconds();
  const std::int64_t time = recorder.read({}).records.at(0).time;
  constexpr std::int64_t kError = 100'000;  // the recorder is young, so it knows the counter's rate only roughly
  CHECK(time >= before - kError);
  CHECK(time <= after + kError);
}

TEST_CASE("The records of a job") {
  FlightRecorder recorders[2];
  run_ranks(2, [&](Engine& engine, int rank) {
    FlightRecorder& recorder = recorders[rank];
    engine.observe(recorder);
    recorder.collect_names(true);
    std::vector<float> data(4, 1.0F);
    while (engine.statistics().planned_batches == 0) wait(allreduce(engine, data, "x"));
    engine.end_step();
  });
  for (const FlightRecorder& recorder : recorders) {
    const std::vector<Record> records = recorder.read({}).records;
    const auto submitted = of_kind(records, RecordKind::kSubmitted);
    const auto ended = of_kind(records, RecordKind::kBatchEnd);
    const auto of_only_request = [](const Record& batch) { return batch.name == hash_of("x"); };
    CHECK_MESSAGE(of_kind(records, RecordKind::kCompleted).empty(), "the ends of the batches stand for them");
    CHECK(submitted.size() == static_cast<std::size_t>(std::ranges::count_if(ended, of_only_request)));
    CHECK(of_kind(records, RecordKind::kPlanLocked).size() == 1);
    CHECK(of_kind(records, RecordKind::kStepEnd).size() == 1);
    CHECK(submitted.front().bytes == 16);
    CHECK(submitted.front().name == hash_of("x"));
    CHECK(recorder.names().at(hash_of("x")) == "x");
    REQUIRE(!ended.empty());
    CHECK(ended.front().number == 1);
    CHECK(ended.front().group == 0);
    const Record arrived = of_kind(records, RecordKind::kAllArrived).back();
    CHECK(arrived.group == kPlannedBit);
    CHECK_MESSAGE((arrived.peer == 0 || arrived.peer == 1), "each rank knows the last one");
    CHECK(arrived.name != kUnknownAge);
  }
  const auto agreed = of_kind(recorders[0].read({}).records, RecordKind::kAgreed);
  REQUIRE(!agreed.empty());
  CHECK_MESSAGE((agreed.front().peer == 0 || agreed.front().peer == 1), "the coordinator knows the last rank");
}

TEST_CASE("How long ago the last rank came") {
  using std::chrono::milliseconds;
  const auto age = [](milliseconds ago) {
    FlightRecorder recorder;
    recorder.on_all_arrived({.arrival = {.last = 1, .at = Clock::now() - ago}});
    return recorder.read({}).records.at(0).name;
  };
  const std::uint32_t second = age(milliseconds(1000));
  CHECK((second > 999'000'000 && second < 2'000'000'000));
  // Neither the largest 32-bit number of nanoseconds nor a wrap of the moment makes a long time short.
  for (const int seconds : {5, 68, 69, 70, 73, 137, 600}) CHECK(age(milliseconds(1000 * seconds)) == kUnknownAge);
}

TEST_CASE("Hashes of names") {
  CHECK(hash_of("") != 0);
  CHECK(hash_of("layer1.weight") == hash_of(std::string("layer1.weight")));
  CHECK(hash_of("layer1.weight") != hash_of("layer2.weight"));
  CHECK(hash_of("abcdefgh") != hash_of(std::string("abcdefgh\0", 9)));
}

}  // namespace
}  // namespace sirtaki::testing
