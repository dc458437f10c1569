// The barrier before each batch of a locked plan. At this barrier a rank can leave the plan (docs/locked_plan.md).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "observer/observer.h"

namespace sirtaki {

// This rank of the job, how far its clock is ahead of rank 0's, and when it arrived by its own clock. For observers.
struct BarrierMember {
  int rank = 0;
  std::chrono::nanoseconds clock_offset{};
  Clock::time_point arrived{};
};

struct PlanBarrier {
  // The two positions show whether all ranks are at the same batch. They are, unless the protocol is broken. The last
  // two are for observers: when the last rank arrived, with its number, and when the first did.
  enum Word : std::size_t { kDeparts, kPosition, kPositionBackward, kLast, kFirst, kWords };
  using Words = std::array<std::uint64_t, kWords>;

  // `departs`: this rank leaves the plan. `position`: batches of the plan that this rank has begun.
  PlanBarrier(bool departs, std::uint64_t position, const BarrierMember& member = {});

  // Combines the words with those of another rank.
  void merge(const Words& theirs);
  // Call it when `words` are the maximum over all ranks. Throws Error(kAborted) if the ranks are at different batches.
  void conclude();
  // Some rank departs, so no rank runs the batch. Known to all ranks once the barrier is over.
  bool called_off() const { return words[kDeparts] != 0; }

  Words words;
  bool over = false;
  // To announce that all ranks have arrived; optional.
  const Observers* observers = nullptr;
  BatchEvent* batch = nullptr;
  std::chrono::nanoseconds clock_offset;

 private:
  Arrival arrival() const;
};

}  // namespace sirtaki
