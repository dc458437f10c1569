#include "coordinator/cycle_finder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

namespace sirtaki::testing {
namespace {

void see(CycleFinder& finder, std::initializer_list<CacheSlot> slots) {
  for (const CacheSlot slot : slots) finder.add({slot, 0});
}

bool finds(CycleFinder& finder, std::initializer_list<CacheSlot> expected) {
  const auto found = finder.take();
  if (!found) return false;
  const auto same = [](const CycleFinder::Entry& entry, CacheSlot slot) { return entry.slot == slot; };
  return std::ranges::equal(*found, expected, same);
}

TEST_CASE("A repeated step is found in the order of its last repetition") {
  CycleFinder finder;
  see(finder, {1, 2, 3});
  CHECK_MESSAGE(!finder.take(), "the first time");
  see(finder, {3, 1});
  CHECK_MESSAGE(!finder.take(), "in the middle");
  see(finder, {2});
  CHECK_MESSAGE(finds(finder, {3, 1, 2}), "the second time");
  CHECK_MESSAGE(!finder.take(), "once");
}

TEST_CASE("A step that has begun again is not complete") {
  CycleFinder finder;
  see(finder, {1, 2, 1, 2, 1});
  CHECK_MESSAGE(!finder.take(), "a request of the next step was agreed on");
  see(finder, {2});
  CHECK_MESSAGE(finds(finder, {1, 2}), "at its end");
}

TEST_CASE("Steps that differ are no repetitions") {
  CycleFinder finder;
  see(finder, {1, 2, 3, 1, 2, 4});
  CHECK_MESSAGE(!finder.take(), "another tensor");
  see(finder, {1, 2});
  CHECK_MESSAGE(!finder.take(), "part of it");
  see(finder, {1, 2});
  CHECK_MESSAGE(finds(finder, {1, 2}), "a shorter step");
  see(finder, {5});
  finder.forget();
  see(finder, {5});
  CHECK_MESSAGE(!finder.take(), "something came in between");
}

TEST_CASE("After a plan that was left soon, the next plan needs more repetitions") {
  CycleFinder finder;
  finder.left_after(3);
  see(finder, {1, 1});
  CHECK_MESSAGE(!finder.take(), "one repetition no longer does");
  see(finder, {1});
  CHECK_MESSAGE(finds(finder, {1}), "two do");
  finder.left_after(100);
  see(finder, {1, 1});
  CHECK_MESSAGE(finds(finder, {1}), "a plan that served is trusted");
}

}  // namespace
}  // namespace sirtaki::testing
