// Which requests travel together.
#include "fusion/fusion.h"

#include <doctest/doctest.h>

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

TEST_CASE("Equal requests fuse up to the limit") {
  CHECK_MESSAGE((plan_of({allreduce(100), allreduce(100), allreduce(50)}) == Plan{{0, 1, 2}}), "1000 bytes fit");
  CHECK_MESSAGE((plan_of({allreduce(100), allreduce(100), allreduce(51)}) == Plan{{0, 1}, {2}}), "1004 bytes do not");
  CHECK_MESSAGE((plan_of({allreduce(999), allreduce(1)}) == Plan{{0}, {1}}), "one that is too large travels alone");
}

TEST_CASE("A limit of 0 sends each tensor alone") {
  CHECK_MESSAGE((plan_of({allreduce(1), allreduce(1)}, 0) == Plan{{0}, {1}}), "threshold 0");
  CHECK_MESSAGE((plan_of({allreduce(0), allreduce(0)}, 0) == Plan{{0, 1}}), "nothing costs nothing");
}

TEST_CASE("Requests that differ do not fuse") {
  Request scaled = allreduce(1);
  scaled.prescale = 2;
  Request post = allreduce(1);
  post.postscale = 2;
  Request op = allreduce(1);
  op.op = ReduceOp::kMax;
  Request device = allreduce(1);
  device.tensors = {{DType::kFloat32, 0, device.tensors[0].shape}};
  const Plan expected{{0, 6}, {1}, {2}, {3}, {4}, {5}};
  CHECK_MESSAGE(
      plan_of({allreduce(1), scaled, post, op, device, allreduce(1, DType::kInt32), allreduce(1)}) == expected,
      "kinds are kept apart and looked ahead over");
}

TEST_CASE("Broadcasts fuse by root, other verbs if they are small and on the host") {
  Request broadcast = allreduce(1);
  broadcast.verb = Verb::kBroadcast;
  broadcast.root = 0;
  Request other_root = broadcast;
  other_root.root = 1;
  Request gather = allreduce(1);
  gather.verb = Verb::kAllgather;
  CHECK_MESSAGE((plan_of({broadcast, other_root, broadcast}) == Plan{{0, 2}, {1}}), "broadcasts fuse by root");
  CHECK_MESSAGE((plan_of({gather, broadcast, gather}) == Plan{{0, 2}, {1}}), "small allgathers share an agreement");
  Request large = gather;
  large.tensors = {{DType::kFloat32, kHostDevice, {20'000}}};
  CHECK_MESSAGE((plan_of({large, large}, 1 << 20) == Plan{{0}, {1}}), "a large one does not wait for another");
  Request on_gpu = gather;
  on_gpu.tensors = {{DType::kFloat32, 0, {1}}};
  CHECK_MESSAGE((plan_of({on_gpu, on_gpu}) == Plan{{0}, {1}}), "on a GPU each travels alone");
}

TEST_CASE("A group of tensors stays in one batch") {
  Request group = allreduce(200);
  group.tensors = {group.tensors[0], {DType::kFloat32, kHostDevice, {200}}};
  CHECK_MESSAGE((plan_of({allreduce(10), group, allreduce(10)}) == Plan{{0}, {1}, {2}}), "a group beyond the limit");
  group.tensors = {{DType::kFloat32, kHostDevice, {10}}, group.tensors[1]};
  CHECK_MESSAGE((plan_of({allreduce(10), group}) == Plan{{0, 1}}), "a group is one unit that fuses like any other");
  group.tensors = {group.tensors[0], {DType::kFloat64, kHostDevice, group.tensors[1].shape}};
  CHECK_MESSAGE((plan_of({group, group}) == Plan{{0}, {1}}), "mixed dtypes stay alone");
}

}  // namespace
}  // namespace sirtaki::testing
