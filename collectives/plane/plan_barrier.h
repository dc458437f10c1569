// What ranks say to each other before the batch of a locked plan (docs/locked_plan.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sirtaki {

struct PlanBarrier {
  // The last two show whether all ranks are at the same batch, which they are unless the protocol is broken.
  enum Word : std::size_t { kDeparts, kPosition, kPositionBackward, kWords };
  using Words = std::array<std::uint64_t, kWords>;

  PlanBarrier(bool departs, std::uint64_t position) : words{departs ? std::uint64_t{1} : 0, position, ~position} {}

  // Of one rank among others.
  void hear(const Words& theirs);
  // `words` are now the greatest of all ranks. Throws Error(kAborted) if they are at different batches.
  void conclude();
  // Once it is over: some rank departs, and nobody runs the batch.
  bool called_off() const { return words[kDeparts] != 0; }

  Words words;
  bool over = false;
};

}  // namespace sirtaki
