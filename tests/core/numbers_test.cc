// The numbers for `sirtakirun top`: another thread requests them while the ranks work.
#include "recorder/numbers.h"

#include <doctest/doctest.h>

#include <atomic>
#include <charconv>
#include <thread>

#include "engine_jobs.h"

namespace sirtaki::testing {
namespace {

constexpr std::uint64_t kSteps = 400;

std::uint64_t value_of(const std::string& json, const std::string& name) {
  const std::string key = '"' + name + "\": ";
  const std::size_t at = json.find(key);
  std::uint64_t value = 0;
  const char* const begin = json.data() + at + key.size();
  const bool found =
      at != std::string::npos && std::from_chars(begin, json.data() + json.size(), value).ec == std::errc{};
  REQUIRE_MESSAGE(found, json);
  return value;
}

struct Recorded {
  FlightRecorder recorder;
  StepWatch watch{recorder};
};

void train(Engine& engine, Recorded& recorded) {
  engine.observe(recorded.recorder);
  std::vector<float> data(256, 1.0F);
  for (std::uint64_t i = 0; i <= kSteps; ++i) {
    wait(allreduce(engine, data, "x"));
    engine.end_step();
    recorded.watch.take_in();
  }
}

TEST_CASE("Numbers are asked for while the ranks work") {
  Recorded ranks[2];
  std::atomic<bool> ended{false};
  std::vector<std::thread> readers;
  std::atomic<int> backwards{0};
  for (Recorded& rank : ranks) {
    readers.emplace_back([&] {
      std::uint64_t before = 0;
      while (!ended) {
        const std::uint64_t steps = value_of(numbers_of(rank.watch, 7), "steps");
        if (steps < before) ++backwards;
        before = steps;
      }
    });
  }
  run_ranks(2, [&](Engine& engine, int rank) { train(engine, ranks[rank]); });
  ended = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(backwards == 0);
  for (Recorded& rank : ranks) {
    const std::string json = numbers_of(rank.watch, 7);
    CHECK(value_of(json, "steps") == kSteps);
    CHECK(value_of(json, "bytes") == 7);
    CHECK(value_of(json, "length") > 0);
    CHECK(json.find(R"("last": {")") != std::string::npos);
    CHECK(json.ends_with("}}"));
  }
}

TEST_CASE("Without steps the numbers are zeros") {
  Recorded rank;
  const std::string json = numbers_of(rank.watch, 0);
  CHECK(value_of(json, "steps") == 0);
  CHECK(json.ends_with(R"("last": {}})"));
}

}  // namespace
}  // namespace sirtaki::testing
