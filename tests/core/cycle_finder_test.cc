#include "coordinator/cycle_finder.h"

#include <algorithm>
#include <initializer_list>

#include "check.h"

namespace sirtaki::testing {
namespace {

void see(CycleFinder& finder, std::initializer_list<CacheSlot> slots) {
  for (const CacheSlot slot : slots) finder.saw({slot, 0});
}

bool finds(CycleFinder& finder, std::initializer_list<CacheSlot> expected) {
  const auto found = finder.take();
  if (!found) return false;
  const auto same = [](const CycleFinder::Entry& entry, CacheSlot slot) { return entry.slot == slot; };
  return std::ranges::equal(*found, expected, same);
}

void a_step_that_repeats_is_found_in_its_last_order() {
  CycleFinder finder;
  see(finder, {1, 2, 3});
  check(!finder.take(), "the first time");
  see(finder, {3, 1});
  check(!finder.take(), "in the middle");
  see(finder, {2});
  check(finds(finder, {3, 1, 2}), "the second time");
  check(!finder.take(), "once");
}

void what_has_begun_again_is_not_at_its_end() {
  CycleFinder finder;
  see(finder, {1, 2, 1, 2, 1});
  check(!finder.take(), "a request of the next step was agreed on");
  see(finder, {2});
  check(finds(finder, {1, 2}), "at its end");
}

void other_steps_are_not_the_same() {
  CycleFinder finder;
  see(finder, {1, 2, 3, 1, 2, 4});
  check(!finder.take(), "another tensor");
  see(finder, {1, 2});
  check(!finder.take(), "part of it");
  see(finder, {1, 2});
  check(finds(finder, {1, 2}), "a shorter step");
  see(finder, {5});
  finder.forget();
  see(finder, {5});
  check(!finder.take(), "something came in between");
}

void whoever_leaves_soon_waits_longer() {
  CycleFinder finder;
  finder.left_after(3);
  see(finder, {1, 1});
  check(!finder.take(), "one repetition no longer does");
  see(finder, {1});
  check(finds(finder, {1}), "two do");
  finder.left_after(100);
  see(finder, {1, 1});
  check(finds(finder, {1}), "a plan that served is trusted");
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  a_step_that_repeats_is_found_in_its_last_order();
  what_has_begun_again_is_not_at_its_end();
  other_steps_are_not_the_same();
  whoever_leaves_soon_waits_longer();
}
