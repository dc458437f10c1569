// NVTX ranges of a job, by functions that write down their calls.
#include "observer/nvtx_ranges.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "engine_jobs.h"

namespace sirtaki::testing {
namespace {

struct Seen {
  std::mutex mutex;
  std::uint64_t ranges = 0;
  std::set<std::uint64_t> open;
  std::vector<std::string> names;
  int depth = 0;

  void name(const char* text) {
    const std::lock_guard lock(mutex);
    names.emplace_back(text);
  }
  std::int64_t count(const std::string& text) const { return std::ranges::count(names, text); }
};
Seen seen;

const NvtxCalls kCalls = {
    .start =
        [](const char* name) {
          seen.name(name);
          const std::lock_guard lock(seen.mutex);
          seen.open.insert(++seen.ranges);
          return seen.ranges;
        },
    .end =
        [](std::uint64_t range) {
          const std::lock_guard lock(seen.mutex);
          CHECK(seen.open.erase(range) == 1);
        },
    .push =
        [](const char* name) {
          seen.name(name);
          return seen.depth++;
        },
    .pop = [] { return --seen.depth; },
    .mark = [](const char* name) { seen.name(name); },
};

TEST_CASE("Batches, waits and steps are ranges while it is switched on") {
  NvtxRanges ranges(kCalls);
  run_ranks(2, [&](Engine& engine, int rank) {
    if (rank == 0) engine.observe(ranges);
    std::vector<float> data(4, 1.0F);
    for (const bool on : {false, true, false}) {
      if (rank == 0) ranges.switch_to(on);
      for (const char* name : {"x", "y"}) wait(allreduce(engine, data, name));
      engine.end_step();
    }
  });
  CHECK(seen.open.empty());
  CHECK(seen.count("sirtaki.allreduce: 1 tensors, 16 bytes") == 2);
  CHECK(seen.count("sirtaki.step") == 1);
}

TEST_CASE("Only waits that have a range end one") {
  NvtxRanges ranges(kCalls);
  seen.depth = 0;
  ranges.on_wait_begun();
  ranges.switch_to(true);
  ranges.on_wait_ended();
  CHECK_MESSAGE(seen.depth == 0, "a range of the program stays");
  ranges.on_wait_begun();
  CHECK(seen.depth == 1);
  ranges.switch_to(false);
  ranges.on_wait_ended();
  CHECK(seen.depth == 0);
  CHECK(seen.count("sirtaki.wait") == 1);
}

}  // namespace
}  // namespace sirtaki::testing
