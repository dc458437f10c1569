// Which requests travel together.
#include "check.h"
#include "fusion/fusion.h"

namespace sirtaki::testing {
namespace {

constexpr std::int64_t kLimit = 1000;

Request allreduce(std::int64_t floats, DType dtype = DType::kFloat32) {
  Request request;
  request.tensors = {{dtype, kHostDevice, {floats}}};
  return request;
}

using Plan = std::vector<std::vector<std::size_t>>;

Plan plan_of(const std::vector<Request>& requests, std::int64_t limit = kLimit) {
  std::vector<const Request*> pointers;
  for (const Request& request : requests) pointers.push_back(&request);
  return plan(pointers, limit);
}

void equals_fuse_up_to_the_limit() {
  check(plan_of({allreduce(100), allreduce(100), allreduce(50)}) == Plan{{0, 1, 2}}, "1000 bytes fit");
  check(plan_of({allreduce(100), allreduce(100), allreduce(51)}) == Plan{{0, 1}, {2}}, "1004 bytes do not");
  check(plan_of({allreduce(999), allreduce(1)}) == Plan{{0}, {1}}, "one that is too large travels alone");
}

void zero_turns_fusion_off() {
  check(plan_of({allreduce(1), allreduce(1)}, 0) == Plan{{0}, {1}}, "threshold 0");
  check(plan_of({allreduce(0), allreduce(0)}, 0) == Plan{{0, 1}}, "nothing costs nothing");
}

void what_differs_does_not_fuse() {
  Request scaled = allreduce(1);
  scaled.prescale = 2;
  Request post = allreduce(1);
  post.postscale = 2;
  Request op = allreduce(1);
  op.op = ReduceOp::kMax;
  Request device = allreduce(1);
  device.tensors = {{DType::kFloat32, 0, device.tensors[0].shape}};
  const Plan expected{{0, 6}, {1}, {2}, {3}, {4}, {5}};
  check(plan_of({allreduce(1), scaled, post, op, device, allreduce(1, DType::kInt32), allreduce(1)}) == expected,
        "kinds are kept apart and looked ahead over");
}

void other_verbs() {
  Request broadcast = allreduce(1);
  broadcast.verb = Verb::kBroadcast;
  broadcast.root = 0;
  Request other_root = broadcast;
  other_root.root = 1;
  Request gather = allreduce(1);
  gather.verb = Verb::kAllgather;
  check(plan_of({broadcast, other_root, broadcast}) == Plan{{0, 2}, {1}}, "broadcasts fuse by root");
  check(plan_of({gather, gather}) == Plan{{0}, {1}}, "allgathers travel alone");
}

void groups_stay_whole() {
  Request group = allreduce(200);
  group.tensors = {group.tensors[0], {DType::kFloat32, kHostDevice, {200}}};
  check(plan_of({allreduce(10), group, allreduce(10)}) == Plan{{0}, {1}, {2}}, "a group beyond the limit");
  group.tensors = {{DType::kFloat32, kHostDevice, {10}}, group.tensors[1]};
  check(plan_of({allreduce(10), group}) == Plan{{0, 1}}, "a group is one unit that fuses like any other");
  group.tensors = {group.tensors[0], {DType::kFloat64, kHostDevice, group.tensors[1].shape}};
  check(plan_of({group, group}) == Plan{{0}, {1}}, "mixed dtypes stay alone");
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  equals_fuse_up_to_the_limit();
  zero_turns_fusion_off();
  what_differs_does_not_fuse();
  other_verbs();
  groups_stay_whole();
}
