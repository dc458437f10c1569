#include "plane/nccl/nccl.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

bool all_equal(std::span<const std::int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts[0]; });
}

std::int64_t bytes_of(std::int64_t count, DType dtype) { return count * static_cast<std::int64_t>(size_of(dtype)); }

NcclOperation way_of(Verb verb, DType dtype, int op, std::span<const Segment> segments) {
  NcclOperation way;
  way.what(static_cast<int>(verb)).what(static_cast<int>(dtype)).what(op);
  for (const Segment& segment : segments) way.size(segment.count);
  return way;
}

NcclOperation way_of(Verb verb, DType dtype, int op, std::span<const std::int64_t> counts) {
  NcclOperation way;
  way.what(static_cast<int>(verb)).what(static_cast<int>(dtype)).what(op);
  for (const std::int64_t count : counts) way.size(count);
  return way;
}

}  // namespace

bool NcclCollectives::can_reduce(const Reduction& reduction) const {
  if (reduction.op == ReduceOp::kAdasum || needs_fold(reduction)) return false;
  return communicator_.members().kernels || !nccl_reduction(reduction).needs_kernels();
}

int NcclCollectives::operation(const Reduction& reduction, const NcclReduction& how) {
  return how.factor == 1.0 ? how.op : communicator_.scaled_sum(reduction.dtype, how.factor);
}

std::byte* NcclCollectives::buffer_of(DeviceMemory& memory, std::int64_t bytes, const char* what) {
  const auto size = static_cast<std::size_t>(bytes);
  if (memory.size() >= size) return memory.data();
  Device& device = communicator_.device();
  if (memory.data() != nullptr) device.record(communicator_.stream())->block();  // queued work uses the old buffer
  memory = {};
  memory = device.allocate(size);
  if (memory.data() != nullptr) return memory.data();
  throw Error(ErrorKind::kAborted, "gpu:" + std::to_string(device.number()) + " has no room for " + what + " of " +
                                       std::to_string(bytes) + " bytes (" + device.free_memory() +
                                       "). Lower SIRTAKI_FUSION_THRESHOLD, or leave memory free: a smaller batch, or "
                                       "a limit for the framework's own pool.");
}

// Gives memory to the neutral values that a rank contributes after join().
std::vector<Segment> NcclCollectives::with_scratch(DType dtype, ReduceOp op, std::vector<Segment> segments) {
  std::int64_t absent = 0;
  for (const Segment& segment : segments) absent += segment.in == nullptr ? segment.count : 0;
  if (absent == 0) return segments;
  std::byte* next = buffer_of(scratch_, bytes_of(absent, dtype), "a buffer for absent tensors");
  communicator_.device().fill_identity(dtype, op, next, absent, communicator_.stream());
  for (Segment& segment : segments) {
    if (segment.in != nullptr) continue;
    segment.in = segment.out = next;
    next += bytes_of(segment.count, dtype);
  }
  return segments;
}

// The packed elements. The padding between the parts is reduced as well and never read.
Segment NcclCollectives::pack(const Reduction& reduction, const NcclReduction& how, const NcclFilling& filling) {
  std::byte* buffer = buffer_of(packed_, filling.bytes, "the fusion buffer");
  std::vector<Part> parts;
  std::int64_t place = 0;
  for (const Segment& part : filling.parts) {
    if (part.in == nullptr) {
      communicator_.device().fill_identity(how.wire, reduction.op, buffer + place, part.count, communicator_.stream());
    } else {
      parts.push_back({part.in, buffer + place, part.count});
    }
    place = next_place(place, bytes_of(part.count, how.wire));
  }
  communicator_.device().convert(how.wire, reduction.dtype, parts, how.before, communicator_.stream());
  return {buffer, buffer, filling.bytes / static_cast<std::int64_t>(size_of(how.wire))};
}

void NcclCollectives::unpack(const Reduction& reduction, const NcclReduction& how, const NcclFilling& filling) {
  std::vector<Part> parts;
  std::int64_t place = 0;
  for (const Segment& part : filling.parts) {
    if (part.out != nullptr) parts.push_back({packed_.data() + place, part.out, part.count});
    place = next_place(place, bytes_of(part.count, how.wire));
  }
  communicator_.device().convert(reduction.dtype, how.wire, parts, how.after, communicator_.stream());
}

// Of a reduction that converts nothing, where the results lie.
void NcclCollectives::scale(DType dtype, const NcclReduction& how, std::span<const Segment> results) {
  if (how.after.is_one()) return;
  std::vector<Part> parts;
  for (const Segment& result : results) parts.push_back({result.out, result.out, result.count});
  communicator_.device().convert(dtype, dtype, parts, how.after, communicator_.stream());
}

void NcclCollectives::queue_allreduce(DType dtype, int op, std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    const int result =
        communicator_.calls().AllReduce(segment.in, segment.out, static_cast<std::size_t>(segment.count),
                                        nccl_type(dtype), op, communicator_.handle(), communicator_.stream());
    communicator_.check(result, "ncclAllReduce");
  }
}

Task NcclCollectives::allreduce(Reduction reduction, std::span<const Segment> segments, std::optional<DType> wire) {
  const NcclReduction how = nccl_reduction(reduction, wire);
  NcclBatch batch = divide(how, reduction.dtype, communicator_.members().kernels, segments);
  const int op = operation(reduction, how);
  if (!batch.direct.empty()) batch.direct = with_scratch(reduction.dtype, reduction.op, std::move(batch.direct));
  const auto queue_direct = [&] { queue_allreduce(reduction.dtype, op, batch.direct); };
  const NcclOperation direct_way = way_of(Verb::kAllreduce, reduction.dtype, how.op, batch.direct);
  if (batch.fillings.empty() && !batch.direct.empty()) co_await communicator_.group(direct_way, queue_direct);
  for (const NcclFilling& filling : batch.fillings) {
    const Segment packed = pack(reduction, how, filling);
    const bool is_last = &filling == &batch.fillings.back();
    NcclOperation way = is_last ? direct_way : way_of(Verb::kAllreduce, how.wire, how.op, std::span<const Segment>());
    way.what(static_cast<int>(how.wire)).size(packed.count);
    co_await communicator_.group(way, [&] {
      queue_allreduce(how.wire, op, {&packed, 1});
      if (is_last) queue_direct();
    });
    unpack(reduction, how, filling);
  }
  scale(reduction.dtype, how, batch.direct);
}

Task NcclCollectives::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  NcclOperation way = way_of(Verb::kBroadcast, DType::kUint8, root, segments);
  way.what(static_cast<int>(element_size));
  co_await communicator_.group(way, [&] {
    for (const Segment& segment : segments) {
      if (segment.count == 0) continue;
      const void* in = communicator_.members().rank == root ? segment.in : segment.out;
      const std::size_t bytes = static_cast<std::size_t>(segment.count) * element_size;
      const int result = communicator_.calls().Broadcast(in, segment.out, bytes, kNcclUint8, root,
                                                         communicator_.handle(), communicator_.stream());
      communicator_.check(result, "ncclBroadcast");
    }
  });
}

// Parts of unequal length: each owner broadcasts its part, in one NCCL group.
Task NcclCollectives::allgather(std::size_t element_size, const Spread& spread) {
  if (sum(spread.counts) == 0) co_return;
  NcclOperation way = way_of(Verb::kAllgather, DType::kUint8, all_equal(spread.counts) ? 1 : 0, spread.counts);
  way.what(static_cast<int>(element_size));
  if (!all_equal(spread.counts)) {
    std::vector<Segment> parts;
    std::byte* out = static_cast<std::byte*>(spread.out);
    for (const std::int64_t count : spread.counts) {
      parts.push_back({out, out, count});
      out += count * static_cast<std::int64_t>(element_size);
    }
    co_await communicator_.group(way, [&] {
      for (int root = 0; root < communicator_.members().size; ++root) {
        const Segment& part = parts[static_cast<std::size_t>(root)];
        if (part.count == 0) continue;
        const void* in = root == communicator_.members().rank ? spread.in : part.in;
        const int result =
            communicator_.calls().Broadcast(in, part.out, static_cast<std::size_t>(part.count) * element_size,
                                            kNcclUint8, root, communicator_.handle(), communicator_.stream());
        communicator_.check(result, "ncclBroadcast");
      }
    });
    co_return;
  }
  co_await communicator_.group(way, [&] {
    const int result = communicator_.calls().AllGather(spread.in, spread.out,
                                                       static_cast<std::size_t>(spread.counts[0]) * element_size,
                                                       kNcclUint8, communicator_.handle(), communicator_.stream());
    communicator_.check(result, "ncclAllGather");
  });
}

void NcclCollectives::queue_reducescatter(const void* in, void* out, DType dtype, int op,
                                          std::span<const std::int64_t> counts) {
  const NcclCalls& calls = communicator_.calls();
  if (all_equal(counts)) {
    const int result = calls.ReduceScatter(in, out, static_cast<std::size_t>(counts[0]), nccl_type(dtype), op,
                                           communicator_.handle(), communicator_.stream());
    communicator_.check(result, "ncclReduceScatter");
    return;
  }
  std::int64_t start = 0;
  for (std::size_t root = 0; root < counts.size(); start += bytes_of(counts[root], dtype), ++root) {
    if (counts[root] == 0) continue;
    const int result = calls.Reduce(at(in, start, 1), out, static_cast<std::size_t>(counts[root]), nccl_type(dtype), op,
                                    static_cast<int>(root), communicator_.handle(), communicator_.stream());
    communicator_.check(result, "ncclReduce");
  }
}

Task NcclCollectives::reducescatter(Reduction reduction, const Spread& spread) {
  const NcclReduction how = nccl_reduction(reduction);
  const std::int64_t total = sum(spread.counts);
  if (total == 0) co_return;
  const int op = operation(reduction, how);
  const NcclOperation way = way_of(Verb::kReducescatter, how.wire, how.op, spread.counts);
  const std::int64_t mine = spread.counts[static_cast<std::size_t>(communicator_.members().rank)];
  if (!how.converts) {
    co_await communicator_.group(
        way, [&] { queue_reducescatter(spread.in, spread.out, reduction.dtype, op, spread.counts); });
    const Segment result{nullptr, spread.out, mine};
    scale(reduction.dtype, how, {&result, 1});
    co_return;
  }
  const std::int64_t start = next_place(0, bytes_of(total, how.wire));
  std::byte* given = buffer_of(packed_, start + bytes_of(mine, how.wire), "a reducescatter's converted tensor");
  std::byte* got = given + start;
  const Part in{spread.in, given, total};
  communicator_.device().convert(how.wire, reduction.dtype, {&in, 1}, how.before, communicator_.stream());
  co_await communicator_.group(way, [&] { queue_reducescatter(given, got, how.wire, op, spread.counts); });
  const Part out{got, spread.out, mine};
  communicator_.device().convert(reduction.dtype, how.wire, {&out, 1}, how.after, communicator_.stream());
}

Task NcclCollectives::alltoall(std::size_t element_size, const Exchange& exchange) {
  const NcclCalls& calls = communicator_.calls();
  NcclOperation way = way_of(Verb::kAlltoall, DType::kUint8, static_cast<int>(element_size), exchange.send_counts);
  for (const std::int64_t count : exchange.receive_counts) way.size(count);
  co_await communicator_.group(way, [&] {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (int peer = 0; peer < communicator_.members().size; ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      const std::size_t to = static_cast<std::size_t>(exchange.send_counts[index]) * element_size;
      const std::size_t from = static_cast<std::size_t>(exchange.receive_counts[index]) * element_size;
      if (to > 0) {
        communicator_.check(
            calls.Send(at(exchange.in, sent, 1), to, kNcclUint8, peer, communicator_.handle(), communicator_.stream()),
            "ncclSend");
      }
      if (from > 0) {
        communicator_.check(calls.Recv(at(exchange.out, received, 1), from, kNcclUint8, peer, communicator_.handle(),
                                       communicator_.stream()),
                            "ncclRecv");
      }
      sent += static_cast<std::int64_t>(to);
      received += static_cast<std::int64_t>(from);
    }
  });
}

}  // namespace sirtaki
