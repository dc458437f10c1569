// The cores of ranks: which ranks share a core, and when a rank moves to another one.
#include "host/core_placement.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <new>

#include "base/clock.h"

namespace sirtaki::testing {
namespace {

cpu_set_t allowed_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CHECK_MESSAGE(sched_getaffinity(0, sizeof(cores), &cores) == 0, "the cores are known");
  return cores;
}

cpu_set_t only(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  return cores;
}

void stay_on(const cpu_set_t& cores) {
  CHECK_MESSAGE(sched_setaffinity(0, sizeof(cores), &cores) == 0, "the cores may be used");
}

std::uint32_t core_word(int core) { return static_cast<std::uint32_t>(core + 1); }

std::shared_ptr<HostBells> make_bells(int ranks) {
  constexpr std::align_val_t kAlignment{128};
  const std::size_t size = static_cast<std::size_t>(ranks) * sizeof(Bell);
  auto* bytes = static_cast<std::byte*>(::operator new(size, kAlignment));
  std::fill_n(bytes, size, std::byte{0});
  const std::shared_ptr<std::byte> memory(bytes, [](std::byte* address) { ::operator delete(address, kAlignment); });
  return std::make_shared<HostBells>(ShmSegment::of_threads(memory, size), ranks);
}

TEST_CASE("A rank sees which ranks share its core") {
  const cpu_set_t all = allowed_cores();
  const auto bells = make_bells(3);
  const int here = sched_getcpu();
  stay_on(only(here));
  const CorePlacement placement(bells, 1);
  CHECK_MESSAGE(!placement.shared(), "no rank has published its core");
  CHECK_MESSAGE(!placement.shared_with(0), "no rank has published its core");
  CHECK_MESSAGE(bells->of(1).core.load() == core_word(here), "its own core");
  bells->of(2).core = core_word(here);
  CHECK_MESSAGE(placement.shared(), "rank 2 is here");
  CHECK_MESSAGE(placement.shared_with(2), "rank 2 is here");
  CHECK_MESSAGE(!placement.shared_with(0), "rank 2 is here");
  bells->of(2).core = core_word(here + 1);
  CHECK_MESSAGE(!placement.shared(), "rank 2 has moved");
  stay_on(all);
}

TEST_CASE("The cores of all ranks are counted together") {
  const auto bells = make_bells(2);
  CorePlacement placement(bells, 0);
  placement.publish_allowed();
  const cpu_set_t own = allowed_cores();
  CHECK_MESSAGE(CPU_EQUAL(&bells->of(0).allowed, &own), "publishes the cores that it may use");
  bells->of(0).allowed = bells->of(1).allowed = only(0);
  CHECK_MESSAGE(!placement.has_cores_for_all(), "one core for two");
  bells->of(1).allowed = only(1);
  CHECK_MESSAGE(placement.has_cores_for_all(), "a core for each");
}

// Does a rank move away from a core on which another rank is in this state?
bool moves_away(const cpu_set_t& allowed, SleepState rest) {
  const auto bells = make_bells(2);
  CorePlacement placement(bells, 0);
  stay_on(allowed);
  constexpr std::chrono::milliseconds kLong{5};
  auto begun = Clock::now();
  int here = -1;
  bool moved = false;
  // Again and again, since the kernel may move this thread to and fro meanwhile.
  constexpr int kTries = 50;
  for (int i = 0; i < kTries && !moved; ++i) {
    begun = Clock::now();
    here = sched_getcpu();
    bells->of(1).core = core_word(here);
    bells->of(1).state = static_cast<std::uint32_t>(rest);
    moved = placement.move_to_free_core();
  }
  if (moved) {
    CHECK_MESSAGE(bells->of(0).core != core_word(here), "went to another core");
    bells->of(1).core = bells->of(0).core.load();
    const bool again = placement.move_to_free_core();
    CHECK_MESSAGE((!again || Clock::now() - begun > kLong), "does not move again so soon");
  }
  const cpu_set_t after = allowed_cores();
  CHECK_MESSAGE(CPU_EQUAL(&after, &allowed), "may use the same cores as before");
  return moved;
}

TEST_CASE("A rank moves away from a core on which another rank is busy") {
  const cpu_set_t all = allowed_cores();
  const bool has_choice = CPU_COUNT(&all) > 1;
  for (const SleepState rest : {SleepState::kAwake, SleepState::kNapping, SleepState::kHelperAsleep}) {
    CHECK_MESSAGE(moves_away(all, rest) == has_choice, "moves if it can");
  }
  CHECK_MESSAGE(!moves_away(all, SleepState::kAsleep), "a sleeping rank does not count");
  CHECK_MESSAGE(!moves_away(only(sched_getcpu()), SleepState::kAwake), "there is no other core");
  stay_on(all);
}

}  // namespace
}  // namespace sirtaki::testing
