#include "plane/nccl.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "dtype_dispatch.h"
#include "error.h"
#include "plane/nccl_reduction.h"

namespace sirtaki {
namespace {

// From here on a tensor is reduced where it lies: packing it would cost more than its own place in the group.
constexpr std::int64_t kDirectBytes = std::int64_t{1} << 20;
// What is packed at a time, at most.
constexpr std::int64_t kPackedBytes = std::int64_t{64} << 20;
constexpr std::int64_t kAlignment = 16;  // bytes; what a thread of a kernel reads at once
constexpr std::chrono::seconds kFarewell{5};

std::byte* at(void* base, std::int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }
const std::byte* at(const void* base, std::int64_t bytes) { return static_cast<const std::byte*>(base) + bytes; }

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

bool all_equal(std::span<const std::int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts[0]; });
}

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Settled final : public Pending {
 public:
  explicit Settled(std::function<bool()> settled) : settled_(std::move(settled)) {}
  bool ready() override { return settled_(); }

 private:
  std::function<bool()> settled_;
};

}  // namespace

// One filling of the packing buffer: what goes in and what comes out, and how much it is.
struct NcclCollectives::Packed {
  std::vector<Segment> segments;  // parts of tensors
  std::int64_t bytes = 0;         // of the wire
};

NcclCollectives::NcclCollectives(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream,
                                 NcclMembers members)
    : library_(std::move(library)), device_(device), stream_(stream), members_(members) {}

NcclCollectives::~NcclCollectives() {
  try {
    if (comm_ != nullptr) leave();
  } catch (const Error&) {
    // The GPU, or its driver at the end of the process, has gone before.
  }
}

void NcclCollectives::leave() {
  const NcclCalls& calls = library_->calls;
  const auto limit = std::chrono::steady_clock::now() + kFarewell;
  int state = kNcclSuccess;
  device_.within([&] {
    for (const auto& [key, op] : scaled_sums_) calls.RedOpDestroy(op, comm_);
    state = calls.CommFinalize(comm_);
    while (state == kNcclInProgress && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (calls.CommGetAsyncError(comm_, &state) != kNcclSuccess) break;
    }
    // Whoever waits for ranks that are gone would wait for ever.
    state == kNcclSuccess ? calls.CommDestroy(comm_) : calls.CommAbort(comm_);
  });
}

Task NcclCollectives::connect() {
  NcclConfig config;
  device_.within([&] {
    const int result = library_->calls.CommInitRankConfig(&comm_, members_.size, members_.id, members_.rank, &config);
    library_->check(result, "ncclCommInitRankConfig");
  });
  co_await settled();
}

// Calls of a communicator that does not block may return before they are carried out.
PendingPtr NcclCollectives::settled() {
  const auto look = [this] {
    int state = kNcclSuccess;
    library_->check(library_->calls.CommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
    library_->check(state, "NCCL", comm_);
    return state == kNcclSuccess;
  };
  if (look()) return nullptr;
  return std::make_unique<Settled>(look);
}

PendingPtr NcclCollectives::group(const Calls& calls) {
  int result = kNcclSuccess;
  device_.within([&] {
    library_->check(library_->calls.GroupStart(), "ncclGroupStart", comm_);
    try {
      calls();
    } catch (...) {
      library_->calls.GroupEnd();
      throw;
    }
    result = library_->calls.GroupEnd();
    library_->check(result, "ncclGroupEnd", comm_);
  });
  return result == kNcclSuccess ? nullptr : settled();
}

void NcclCollectives::check_queued() {
  if (comm_ == nullptr) return;
  int state = kNcclSuccess;
  library_->check(library_->calls.CommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  library_->check(state, "NCCL", comm_);
}

void NcclCollectives::abort() {
  if (comm_ == nullptr) return;
  device_.within([&] { library_->calls.CommAbort(comm_); });
  comm_ = nullptr;
}

bool NcclCollectives::can_reduce(const Reduction& reduction) const {
  if (reduction.op == ReduceOp::kAdasum) return false;
  return members_.kernels || !nccl_reduction(reduction).converts;
}

// The operation that multiplies by the factor before it adds.
int NcclCollectives::operation(const Reduction& reduction, double factor) {
  if (factor == 1.0) return nccl_reduction(reduction).op;
  const auto [entry, is_new] = scaled_sums_.try_emplace({reduction.dtype, factor}, kNcclSum);
  if (is_new) {
    with_type(reduction.dtype, [&]<class T>(std::type_identity<T>) {
      T scalar;
      if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
        scalar = T(static_cast<float>(factor));
      } else {
        scalar = static_cast<T>(factor);
      }
      library_->check(library_->calls.RedOpCreatePreMulSum(&entry->second, &scalar, nccl_type(reduction.dtype),
                                                           kNcclScalarHost, comm_),
                      "ncclRedOpCreatePreMulSum", comm_);
    });
  }
  return entry->second;
}

std::byte* NcclCollectives::buffer(DeviceMemory& memory, std::size_t bytes, const char* what) {
  if (memory.size() >= bytes) return memory.data();
  if (memory.data() != nullptr) device_.record(stream_)->block();  // whatever is queued still uses the old one
  memory = {};
  memory = device_.allocate(bytes);
  if (memory.data() != nullptr) return memory.data();
  throw Error(ErrorKind::kAborted, "gpu:" + std::to_string(device_.number()) + " has no room for " + what + " of " +
                                       std::to_string(bytes) + " bytes (" + device_.room() +
                                       "). Lower SIRTAKI_FUSION_THRESHOLD, or leave memory free: a smaller batch, or "
                                       "a limit for the framework's own pool.");
}

void NcclCollectives::queue_direct(DType dtype, int op, std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    library_->check(library_->calls.AllReduce(segment.in, segment.out, static_cast<std::size_t>(segment.count),
                                              nccl_type(dtype), op, comm_, stream_),
                    "ncclAllReduce", comm_);
  }
}

// Gives memory to what a rank that has joined contributes.
std::vector<Segment> NcclCollectives::with_scratch(DType dtype, ReduceOp op, std::vector<Segment> segments) {
  std::int64_t absent = 0;
  for (const Segment& segment : segments) absent += segment.in == nullptr ? segment.count : 0;
  if (absent == 0) return segments;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::byte* next = buffer(scratch_, static_cast<std::size_t>(absent * size), "what stands for absent tensors");
  device_.fill_identity(dtype, op, next, absent, stream_);
  for (Segment& segment : segments) {
    if (segment.in != nullptr) continue;
    segment.in = segment.out = next;
    next += segment.count * size;
  }
  return segments;
}

Task NcclCollectives::allreduce(Reduction reduction, std::span<const Segment> segments) {
  const NcclReduction how = nccl_reduction(reduction);
  const auto item_size = static_cast<std::int64_t>(size_of(reduction.dtype));
  const auto wire_size = static_cast<std::int64_t>(size_of(how.wire));
  std::vector<Segment> direct;
  std::vector<Packed> fillings;
  const auto filled = std::count_if(segments.begin(), segments.end(), [](const Segment& s) { return s.count > 0; });
  for (const Segment& segment : segments) {
    if (segment.count == 0) continue;
    const bool alone = filled == 1 || !members_.kernels || segment.count * item_size >= kDirectBytes;
    if (!how.converts && alone) {
      direct.push_back(segment);
      continue;
    }
    for (std::int64_t done = 0; done < segment.count;) {
      const std::int64_t left = segment.count - done;
      if (fillings.empty() || fillings.back().bytes >= kPackedBytes) fillings.emplace_back();
      Packed& filling = fillings.back();
      const std::int64_t count = std::min(left, (kPackedBytes - filling.bytes) / wire_size);
      Segment part{nullptr, nullptr, count};
      if (segment.in != nullptr) {
        part = {at(segment.in, done * item_size), at(segment.out, done * item_size), count};
      }
      filling.segments.push_back(part);
      filling.bytes = aligned(filling.bytes + count * wire_size);
      done += count;
    }
  }
  direct = with_scratch(reduction.dtype, reduction.op, std::move(direct));
  const int op = operation(reduction, how.factor);
  for (std::size_t i = 0; i < std::max<std::size_t>(fillings.size(), 1); ++i) {
    const bool last = i + 1 >= fillings.size();
    if (fillings.empty()) {
      if (!direct.empty()) co_await group([&] { queue_direct(reduction.dtype, op, direct); });
      break;
    }
    const Packed& filling = fillings[i];
    std::byte* room = buffer(packed_, static_cast<std::size_t>(filling.bytes), "the fusion buffer");
    std::vector<Part> in, out;
    std::int64_t place = 0;
    for (const Segment& part : filling.segments) {
      if (part.in == nullptr) {
        device_.fill_identity(how.wire, reduction.op, room + place, part.count, stream_);
      } else {
        in.push_back({part.in, room + place, part.count});
        out.push_back({room + place, part.out, part.count});
      }
      place = aligned(place + part.count * wire_size);
    }
    device_.convert(how.wire, reduction.dtype, in, how.before, stream_);
    const Segment whole{room, room, filling.bytes / wire_size};
    co_await group([&] {
      queue_direct(how.wire, op, {&whole, 1});
      if (last) queue_direct(reduction.dtype, op, direct);
    });
    device_.convert(reduction.dtype, how.wire, out, how.after, stream_);
  }
}

Task NcclCollectives::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  co_await group([&] {
    for (const Segment& segment : segments) {
      if (segment.count == 0) continue;
      const void* in = members_.rank == root ? segment.in : segment.out;
      library_->check(library_->calls.Broadcast(in, segment.out, static_cast<std::size_t>(segment.count) * element_size,
                                                kNcclUint8, root, comm_, stream_),
                      "ncclBroadcast", comm_);
    }
  });
}

// Parts of unequal length are broadcast, each by its owner, in one group.
Task NcclCollectives::allgather(std::size_t element_size, const Spread& spread) {
  const auto size = static_cast<std::int64_t>(element_size);
  if (sum(spread.counts) == 0) co_return;
  co_await group([&] {
    if (all_equal(spread.counts)) {
      library_->check(
          library_->calls.AllGather(spread.in, spread.out, static_cast<std::size_t>(spread.counts[0] * size),
                                    kNcclUint8, comm_, stream_),
          "ncclAllGather", comm_);
      return;
    }
    std::int64_t start = 0;
    for (int r = 0; r < members_.size; ++r) {
      const std::int64_t bytes = spread.counts[static_cast<std::size_t>(r)] * size;
      std::byte* out = at(spread.out, start);
      start += bytes;
      if (bytes == 0) continue;
      library_->check(library_->calls.Broadcast(r == members_.rank ? spread.in : out, out,
                                                static_cast<std::size_t>(bytes), kNcclUint8, r, comm_, stream_),
                      "ncclBroadcast", comm_);
    }
  });
}

void NcclCollectives::scatter(const void* in, void* out, DType dtype, int op, std::span<const std::int64_t> counts) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  if (all_equal(counts)) {
    library_->check(library_->calls.ReduceScatter(in, out, static_cast<std::size_t>(counts[0]), nccl_type(dtype), op,
                                                  comm_, stream_),
                    "ncclReduceScatter", comm_);
    return;
  }
  std::int64_t start = 0;
  for (int r = 0; r < members_.size; ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)];
    if (count > 0) {
      library_->check(library_->calls.Reduce(at(in, start * size), out, static_cast<std::size_t>(count),
                                             nccl_type(dtype), op, r, comm_, stream_),
                      "ncclReduce", comm_);
    }
    start += count;
  }
}

Task NcclCollectives::reducescatter(Reduction reduction, const Spread& spread) {
  const NcclReduction how = nccl_reduction(reduction);
  const std::int64_t total = sum(spread.counts);
  if (total == 0) co_return;
  const int op = operation(reduction, how.factor);
  if (!how.converts) {
    co_await group([&] { scatter(spread.in, spread.out, reduction.dtype, op, spread.counts); });
    co_return;
  }
  const auto wire_size = static_cast<std::int64_t>(size_of(how.wire));
  const std::int64_t mine = spread.counts[static_cast<std::size_t>(members_.rank)];
  std::byte* room = buffer(packed_, static_cast<std::size_t>(aligned(total * wire_size) + mine * wire_size),
                           "a reducescatter's converted tensor");
  std::byte* result = room + aligned(total * wire_size);
  const Part in{spread.in, room, total};
  device_.convert(how.wire, reduction.dtype, {&in, 1}, how.before, stream_);
  co_await group([&] { scatter(room, result, how.wire, op, spread.counts); });
  const Part out{result, spread.out, mine};
  device_.convert(reduction.dtype, how.wire, {&out, 1}, how.after, stream_);
}

Task NcclCollectives::alltoall(std::size_t element_size, const Exchange& exchange) {
  const auto size = static_cast<std::int64_t>(element_size);
  co_await group([&] {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (int r = 0; r < members_.size; ++r) {
      const std::int64_t to = exchange.send_counts[static_cast<std::size_t>(r)] * size;
      const std::int64_t from = exchange.receive_counts[static_cast<std::size_t>(r)] * size;
      if (to > 0) {
        library_->check(
            library_->calls.Send(at(exchange.in, sent), static_cast<std::size_t>(to), kNcclUint8, r, comm_, stream_),
            "ncclSend", comm_);
      }
      if (from > 0) {
        library_->check(library_->calls.Recv(at(exchange.out, received), static_cast<std::size_t>(from), kNcclUint8, r,
                                             comm_, stream_),
                        "ncclRecv", comm_);
      }
      sent += to;
      received += from;
    }
  });
}

}  // namespace sirtaki
