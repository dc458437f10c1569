#include "plane/plan_barrier.h"

#include <algorithm>

#include "base/error.h"
#include "plane/data_plane.h"

namespace sirtaki {

void PlanBarrier::hear(const Words& theirs) {
  for (std::size_t i = 0; i < kWords; ++i) words[i] = std::max(words[i], theirs[i]);
}

void PlanBarrier::conclude() {
  if (words[kPosition] != ~words[kPositionBackward]) {
    throw Error(ErrorKind::kAborted,
                "the ranks are at different batches of their locked plan; please report this as a bug");
  }
  over = true;
}

Task DataPlane::allreduce_if_all_come(PlanBarrier& meeting, Reduction reduction, std::span<const Segment> segments) {
  const Segment words{meeting.words.data(), meeting.words.data(), PlanBarrier::kWords};
  co_await allreduce({.dtype = DType::kUint64, .op = ReduceOp::kMax}, std::span(&words, 1));
  meeting.conclude();
  if (!meeting.called_off() && !segments.empty()) co_await allreduce(reduction, segments);
}

}  // namespace sirtaki
