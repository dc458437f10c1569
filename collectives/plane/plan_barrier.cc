#include "plane/plan_barrier.h"

#include <algorithm>

#include "base/error.h"
#include "plane/data_plane.h"

namespace sirtaki {

namespace {

// A word holds a time in these units, which leaves room for the number of a rank.
constexpr std::chrono::nanoseconds kUnit{256};
constexpr int kRankBits = 16;

std::uint64_t units(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time / kUnit));
}

}  // namespace

PlanBarrier::PlanBarrier(bool departs, std::uint64_t position, const BarrierMember& member)
    : words{departs ? std::uint64_t{1} : 0, position, ~position}, clock_offset(member.clock_offset) {
  const std::uint64_t time = units(member.arrived.time_since_epoch() - clock_offset);
  words[kLast] = (time << kRankBits) | static_cast<std::uint16_t>(member.rank);
  words[kFirst] = ~time;
}

Arrival PlanBarrier::arrival() const {
  const std::uint64_t last = words[kLast] >> kRankBits;
  const auto since_first = static_cast<std::int64_t>(last - ~words[kFirst]);
  const auto common = static_cast<std::int64_t>(last) * kUnit;
  return {static_cast<std::uint16_t>(words[kLast]), since_first * kUnit, Clock::time_point(common + clock_offset)};
}

void PlanBarrier::merge(const Words& theirs) {
  for (std::size_t i = 0; i < kWords; ++i) words[i] = std::max(words[i], theirs[i]);
}

void PlanBarrier::conclude() {
  if (words[kPosition] != ~words[kPositionBackward]) {
    throw Error(ErrorKind::kAborted,
                "the ranks are at different batches of their locked plan; please report this as a bug");
  }
  over = true;
  if (observers == nullptr || called_off()) return;
  batch->arrival = arrival();
  observers->announce(&Observer::on_all_arrived, *batch);
}

Task DataPlane::allreduce_behind_barrier(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments) {
  const Segment words{barrier.words.data(), barrier.words.data(), PlanBarrier::kWords};
  co_await allreduce({.dtype = DType::kUint64, .op = ReduceOp::kMax}, std::span(&words, 1));
  barrier.conclude();
  if (!barrier.called_off() && !segments.empty()) co_await allreduce(reduction, segments);
}

}  // namespace sirtaki
