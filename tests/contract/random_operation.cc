#include "random_operation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "math/dtype_dispatch.h"
#include "math/reduce_inputs.h"

namespace sirtaki::contract {
namespace {

int below(std::mt19937& random, int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); }

// Sums of such numbers are rounded, so that another order would be noticed.
template <class T>
T element(DType dtype, std::uint32_t noise) {
  if (dtype == DType::kBool) return static_cast<T>(static_cast<float>(noise & 1U));
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(noise);
  } else {
    return static_cast<T>(static_cast<float>(static_cast<std::int32_t>(noise)) * 0x1p-30F);
  }
}

Reduction random_reduction(std::mt19937& random, int size) {
  constexpr std::array<ReduceOp, 4> ops = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  Reduction reduction{static_cast<DType>(below(random, kDTypeCount)), ops[random() % ops.size()], 1, 1};
  if (reduction.dtype == DType::kBool) return reduction;
  if (below(random, 3) == 0) reduction.prescale = 1.0 / 3;
  if (below(random, 2) == 0) reduction.postscale = 0.7;
  if (reduction.op == ReduceOp::kSum && below(random, 2) == 0) reduction.divisor = size;
  return reduction;
}

}  // namespace

RandomOperation::RandomOperation(DataPlane& plane, int rank, int size, std::mt19937& random)
    : plane_(plane), rank_(rank), size_(size), seed_(static_cast<std::uint32_t>(random())) {
  reduction_ = random_reduction(random, size);
  item_ = size_of(reduction_.dtype);
  const int verb = below(random, 8);
  if (verb < 4) begin_allreduce(random);
  if (verb == 4) begin_broadcast(random);
  if (verb == 5) begin_allgather(random);
  if (verb == 6) begin_reducescatter(random);
  if (verb == 7) begin_alltoall(random);
}

bool RandomOperation::advance() {
  if (!task_.advance()) return false;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const bool right = expected_[i].empty() || std::memcmp(results_[i], expected_[i].data(), expected_[i].size()) == 0;
    CHECK_MESSAGE(right, what_, " of ", std::string(name_of(reduction_.dtype)), ", tensor ", i, " of ",
                  expected_[i].size(), " bytes, rank ", rank_, " of ", size_);
  }
  return true;
}

RandomOperation::Memory RandomOperation::input(int rank, std::size_t tensor, std::int64_t count) const {
  Memory memory(static_cast<std::size_t>(count) * item_);
  std::uint32_t state =
      seed_ + static_cast<std::uint32_t>(rank) * 77'777U + static_cast<std::uint32_t>(tensor) * 131U + 1U;
  with_type(reduction_.dtype, [&]<class T>(std::type_identity<T>) {
    T* elements = reinterpret_cast<T*>(memory.data());
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1'664'525U + 1'013'904'223U;
      elements[i] = element<T>(reduction_.dtype, state ^ (state >> 16));
    }
  });
  return memory;
}

// From nothing to some millions, small numbers more often.
std::int64_t RandomOperation::random_count(std::mt19937& random) const {
  const int bits = below(random, below(random, 10) == 0 ? 20 : 16);
  return static_cast<std::int64_t>(random() % (1U << bits));
}

// Elements [begin, begin + count) of what all ranks' tensors of `total` elements reduce to.
RandomOperation::Memory RandomOperation::reduced(std::size_t tensor, std::int64_t begin, std::int64_t count,
                                                 std::int64_t total) const {
  std::vector<Memory> all;
  std::vector<const std::byte*> inputs;
  for (int r = 0; r < size_; ++r) all.push_back(input(r, tensor, total));
  for (const Memory& each : all) inputs.push_back(each.data() + static_cast<std::size_t>(begin) * item_);
  Memory result(static_cast<std::size_t>(count) * item_);
  reduce_inputs(reduction_, inputs, result.data(), count);
  return result;
}

void RandomOperation::begin_allreduce(std::mt19937& random) {
  what_ = "allreduce, " + std::string(name_of(reduction_.op));
  const int tensors = 1 + below(random, 5);
  for (int t = 0; t < tensors; ++t) {
    const auto tensor = static_cast<std::size_t>(t);
    const std::int64_t count = random_count(random);
    in_.push_back(input(rank_, tensor, count));
    out_.push_back(Memory(in_.back().size()));
    expected_.push_back(reduced(tensor, 0, count, count));
    results_.push_back((t + rank_) % 2 == 0 ? in_.back().data() : out_.back().data());
    segments_.push_back({in_.back().data(), results_.back(), count});
  }
  task_ = plane_.allreduce(reduction_, segments_);
}

void RandomOperation::begin_broadcast(std::mt19937& random) {
  what_ = "broadcast";
  const int root = below(random, size_);
  const std::int64_t count = random_count(random);
  in_.push_back(input(rank_, 0, count));
  expected_.push_back(input(root, 0, count));
  results_.push_back(in_.back().data());
  segments_.push_back({in_.back().data(), in_.back().data(), count});
  task_ = plane_.broadcast(root, item_, segments_);
}

void RandomOperation::begin_allgather(std::mt19937& random) {
  what_ = "allgather";
  Memory all;
  for (int r = 0; r < size_; ++r) {
    spread_.counts.push_back(random_count(random));
    const Memory part = input(r, 0, spread_.counts.back());
    all.insert(all.end(), part.begin(), part.end());
  }
  in_.push_back(input(rank_, 0, spread_.counts[static_cast<std::size_t>(rank_)]));
  out_.push_back(Memory(all.size()));
  expected_.push_back(std::move(all));
  results_.push_back(out_.back().data());
  spread_.in = in_.back().data();
  spread_.out = out_.back().data();
  task_ = plane_.allgather(item_, spread_);
}

void RandomOperation::begin_reducescatter(std::mt19937& random) {
  what_ = "reducescatter, " + std::string(name_of(reduction_.op));
  for (int r = 0; r < size_; ++r) spread_.counts.push_back(random_count(random));
  const auto& counts = spread_.counts;
  const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, std::int64_t{0});
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  in_.push_back(input(rank_, 0, total));
  expected_.push_back(reduced(0, begin, counts[static_cast<std::size_t>(rank_)], total));
  out_.push_back(Memory(expected_.back().size()));
  results_.push_back(out_.back().data());
  spread_.in = in_.back().data();
  spread_.out = out_.back().data();
  task_ = plane_.reducescatter(reduction_, spread_);
}

void RandomOperation::begin_alltoall(std::mt19937& random) {
  what_ = "alltoall";
  Memory received;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      const std::int64_t count = random_count(random);
      const Memory part = input(from, static_cast<std::size_t>(to), count);
      exchange_.longest = std::max(exchange_.longest, count);
      if (from == rank_) {
        exchange_.send_counts.push_back(count);
        in_.push_back(part);
      }
      if (to == rank_) {
        exchange_.receive_counts.push_back(count);
        received.insert(received.end(), part.begin(), part.end());
      }
    }
  }
  Memory all;
  for (const Memory& part : in_) all.insert(all.end(), part.begin(), part.end());
  in_ = {std::move(all)};
  out_.push_back(Memory(received.size()));
  expected_.push_back(std::move(received));
  results_.push_back(out_.back().data());
  exchange_.in = in_.back().data();
  exchange_.out = out_.back().data();
  task_ = plane_.alltoall(item_, exchange_);
}

}  // namespace sirtaki::contract
