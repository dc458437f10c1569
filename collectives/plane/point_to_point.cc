#include "plane/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "math/kernels.h"
#include "math/reduce_inputs.h"
#include "memory/host_buffer.h"
#include "plane/adasum.h"
#include "plane/pieces.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

// A large batch goes in pieces. They are small, so that a sum reads from the cache what has just arrived; but a
// message, which is one rank's block of a piece, is not too small for the network.
constexpr std::int64_t kLeastPieceBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kBlockBytes = std::int64_t{128} << 10;
constexpr std::int64_t kOneShotBytes = std::int64_t{16} << 10;
// Tensors of at least this size are sent and received in place.
constexpr std::int64_t kDirectBytes = std::int64_t{64} << 10;
constexpr int kTags = kFirstFreeTag;
// Tags of one collective. Successive transfers between two ranks have different tags. So a transfer goes into the right
// buffer even if the network delivers in another order.
constexpr int kTagsOfOne = 128;
static_assert(kTags % kTagsOfOne == 0);

std::byte* offset(void* base, std::int64_t bytes) { return static_cast<std::byte*>(base) + bytes; }
const std::byte* offset(const void* base, std::int64_t bytes) { return static_cast<const std::byte*>(base) + bytes; }

std::span<std::byte> writable(void* base, std::int64_t bytes) {
  return {static_cast<std::byte*>(base), static_cast<std::size_t>(bytes)};
}
std::span<const std::byte> readable(const void* base, std::int64_t bytes) {
  return {static_cast<const std::byte*>(base), static_cast<std::size_t>(bytes)};
}

// The beginning of each rank's part; the last entry is the total.
std::vector<std::int64_t> starts_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> starts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

class PointToPoint final : public DataPlane {
 public:
  explicit PointToPoint(Transport& transport)
      : transport_(transport),
        rank_(transport.rank()),
        size_(transport.size()),
        piece_bytes_(std::clamp(size_ * kBlockBytes, kLeastPieceBytes, kMostPieceBytes)) {}

  std::string_view name() const override { return "point-to-point"; }
  bool supports(const PlaneQuery& query) const override {
    return query.device == kHostDevice && moves_data(query.verb);
  }

  bool wakes() const override { return transport_.arrivals_wake(); }
  void abort() override { transport_.stop_data(); }

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    return reduction.op == ReduceOp::kAdasum ? reduce_adasum(reduction, segments, next_tag())
                                             : reduce_pieces(reduction, segments, next_tag());
  }

  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override {
    return broadcast_segments(root, static_cast<std::int64_t>(element_size), segments, next_tag());
  }

  Task allgather(std::size_t element_size, const Spread& spread) override {
    return gather(static_cast<std::int64_t>(element_size), spread, next_tag());
  }

  Task reducescatter(Reduction reduction, const Spread& spread) override {
    return scatter(reduction, spread, next_tag());
  }

  Task alltoall(std::size_t element_size, const Exchange& exchange) override {
    return exchange_all(static_cast<std::int64_t>(element_size), exchange, next_tag());
  }

 private:
  // Collectives of a group start in the same order on all its ranks, so counting them gives equal tags.
  int next_tag() { return tag_ = (tag_ + kTagsOfOne) % kTags; }

  // One piece of a batch on its way.
  struct Round {
    Piece piece;
    HostBuffer packed;  // the elements of a packed piece
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::vector<std::int64_t> starts;  // of each rank's block; all zero: every block is the whole piece
    std::int64_t own_count = 0;        // elements of this rank's block
    HostBuffer theirs;                 // this rank's block, as each other rank has it
    std::vector<PendingPtr> pending;
    int tag = 0;

    bool one_shot() const { return starts.back() == 0; }
  };

  // While one piece is summed and spread, the next one is on its way. Elements travel as they are: reduce_inputs()
  // scales, and rounds only once.
  Task reduce_pieces(Reduction reduction, std::span<const Segment> segments, int tag) {
    const auto item_size = static_cast<std::int64_t>(size_of(reduction.dtype));
    PieceWalk walk(segments, {.piece = piece_bytes_ / item_size, .direct = kDirectBytes / item_size});
    Round now, next;
    int number = 0;
    bool more = begin_round(walk, segments, item_size, tag, number, now);
    while (more) {
      more = begin_round(walk, segments, item_size, tag, ++number, next);
      for (PendingPtr& transfer : now.pending) co_await std::move(transfer);
      reduce_round(reduction, now);
      if (!now.one_shot()) {
        const std::byte* const own = now.out + now.starts[static_cast<std::size_t>(rank_)] * item_size;
        co_await spread_blocks(item_size, own, now.out, now.starts, now.tag + 1);
      }
      if (now.piece.packed) copy_parts(walk, now, item_size, false);
      std::swap(now, next);
    }
  }

  // Sends each other rank the block that it sums. False at the end of the batch.
  bool begin_round(PieceWalk& walk, std::span<const Segment> segments, std::int64_t item_size, int tag, int number,
                   Round& round) {
    if (!walk.next(round.piece)) return false;
    const std::int64_t count = round.piece.count;
    round.tag = tag + 2 * number % kTagsOfOne;
    if (round.piece.packed) {
      resize(round.packed, count * item_size);
      copy_parts(walk, round, item_size, true);
      round.in = round.out = round.packed.data();
    } else {
      const Segment& segment = segments[round.piece.segment];
      round.in = offset(segment.in, round.piece.offset * item_size);
      round.out = offset(segment.out, round.piece.offset * item_size);
    }
    const auto n = static_cast<std::size_t>(size_);
    round.starts.assign(n + 1, 0);
    const bool one_shot = count * item_size <= kOneShotBytes;
    for (std::size_t r = 1; !one_shot && r <= n; ++r) round.starts[r] = count * static_cast<std::int64_t>(r) / size_;
    const auto mine = static_cast<std::size_t>(rank_);
    round.own_count = one_shot ? count : round.starts[mine + 1] - round.starts[mine];
    send_blocks(round, item_size);
    return true;
  }

  void send_blocks(Round& round, std::int64_t item_size) {
    const std::int64_t bytes = round.own_count * item_size;
    resize(round.theirs, bytes * size_);
    round.pending.clear();
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      const int from = (rank_ + size_ - step) % size_;
      const auto block = static_cast<std::size_t>(to);
      const std::int64_t length = round.one_shot() ? round.own_count : round.starts[block + 1] - round.starts[block];
      round.pending.push_back(
          transport_.receive_data(from, round.tag, writable(offset(round.theirs.data(), from * bytes), bytes)));
      round.pending.push_back(transport_.send_data(
          to, round.tag, readable(round.in + round.starts[block] * item_size, length * item_size)));
    }
  }

  // Sums this rank's block, in the order of the ranks.
  void reduce_round(const Reduction& reduction, Round& round) {
    const auto item_size = static_cast<std::int64_t>(size_of(reduction.dtype));
    const std::int64_t at = round.starts[static_cast<std::size_t>(rank_)] * item_size;
    std::vector<const std::byte*> inputs;
    inputs.reserve(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) {
      inputs.push_back(r == rank_ ? round.in + at : offset(round.theirs.data(), r * round.own_count * item_size));
    }
    reduce_inputs(reduction, inputs, round.out + at, round.own_count);
  }

  static void resize(HostBuffer& buffer, std::int64_t bytes) {
    if (static_cast<std::int64_t>(buffer.size()) < bytes) buffer = HostBuffer(static_cast<std::size_t>(bytes));
  }

  // Copies the parts of a packed piece together, or back.
  static void copy_parts(const PieceWalk& walk, Round& round, std::int64_t item_size, bool together) {
    walk.for_each_part(round.piece,
                       [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t at) {
                         std::byte* const packed = offset(round.packed.data(), at * item_size);
                         const auto bytes = static_cast<std::size_t>(count * item_size);
                         if (together) {
                           std::memcpy(packed, offset(segment.in, from * item_size), bytes);
                         } else {
                           std::memcpy(offset(segment.out, from * item_size), packed, bytes);
                         }
                       });
  }

  // Every rank sends to each other rank r the block that begins at starts[r]. Then it reduces its own block and the
  // received ones, in the order of the ranks.
  Task reduce_blocks(Reduction reduction, std::byte* buffer, std::vector<std::int64_t> starts, std::int64_t count,
                     int tag) {
    const auto item_size = static_cast<std::int64_t>(size_of(reduction.dtype));
    Round round;
    round.in = round.out = buffer;
    round.starts = std::move(starts);
    round.own_count = count;
    round.tag = tag;
    if (round.one_shot()) co_return;  // nothing to reduce
    send_blocks(round, item_size);
    for (PendingPtr& transfer : round.pending) co_await std::move(transfer);
    reduce_round(reduction, round);
  }

  // Every rank sends its block to all others. Starts are elements of `element_size` bytes.
  Task spread_blocks(std::int64_t element_size, const void* own, void* out, std::vector<std::int64_t> starts, int tag) {
    std::vector<PendingPtr> pending;
    const auto block = [&](int r) {
      const auto index = static_cast<std::size_t>(r);
      return writable(offset(out, starts[index] * element_size), (starts[index + 1] - starts[index]) * element_size);
    };
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      pending.push_back(transport_.receive_data(from, tag, block(from)));
    }
    const std::span<std::byte> mine = block(rank_);
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      pending.push_back(transport_.send_data(to, tag, readable(own, static_cast<std::int64_t>(mine.size()))));
    }
    if (own != mine.data() && !mine.empty()) std::memcpy(mine.data(), own, mine.size());
    for (PendingPtr& transfer : pending) co_await std::move(transfer);
  }

  Task gather(std::int64_t element_size, const Spread& spread, int tag) {
    co_await spread_blocks(element_size, spread.in, spread.out, starts_of(spread.counts), tag);
  }

  Task scatter(Reduction reduction, const Spread& spread, int tag) {
    const ReductionSteps steps = steps_of_fold(reduction);
    const DType wire = steps.wire;
    const auto wire_size = static_cast<std::int64_t>(size_of(wire));
    const auto item_size = static_cast<std::int64_t>(size_of(reduction.dtype));
    const std::vector<std::int64_t> starts = starts_of(spread.counts);
    const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
    const std::int64_t step = piece_bytes_ / wire_size;
    // Each round takes the next `step` elements of every rank's block, so that any size needs little memory.
    int round = 0;
    for (std::int64_t done = 0; done < longest; done += step, ++round) {
      std::vector<std::int64_t> counts;
      counts.reserve(spread.counts.size());
      for (const std::int64_t count : spread.counts) counts.push_back(std::clamp<std::int64_t>(count - done, 0, step));
      const std::vector<std::int64_t> packed = starts_of(counts);
      HostBuffer buffer(static_cast<std::size_t>(packed.back() * wire_size));
      for (std::size_t r = 0; r < counts.size(); ++r) {
        convert(wire, offset(buffer.data(), packed[r] * wire_size), reduction.dtype,
                offset(spread.in, (starts[r] + done) * item_size), counts[r], steps.before);
      }
      const auto mine = static_cast<std::size_t>(rank_);
      co_await reduce_blocks(steps.combine, buffer.data(), packed, counts[mine], tag + round % kTagsOfOne);
      convert(reduction.dtype, offset(spread.out, done * item_size), wire,
              offset(buffer.data(), packed[mine] * wire_size), counts[mine], steps.after);
    }
  }

  Task exchange_all(std::int64_t element_size, const Exchange& exchange, int tag) {
    const std::vector<std::int64_t> sends = starts_of(exchange.send_counts);
    const std::vector<std::int64_t> receives = starts_of(exchange.receive_counts);
    const auto out = [&](int r) {
      const auto i = static_cast<std::size_t>(r);
      return writable(offset(exchange.out, receives[i] * element_size), exchange.receive_counts[i] * element_size);
    };
    const auto in = [&](int r) {
      const auto i = static_cast<std::size_t>(r);
      return readable(offset(exchange.in, sends[i] * element_size), exchange.send_counts[i] * element_size);
    };
    std::vector<PendingPtr> pending;
    for (int step = 1; step < size_; ++step) {
      pending.push_back(
          transport_.receive_data((rank_ + size_ - step) % size_, tag, out((rank_ + size_ - step) % size_)));
      pending.push_back(transport_.send_data((rank_ + step) % size_, tag, in((rank_ + step) % size_)));
    }
    if (!in(rank_).empty()) std::memcpy(out(rank_).data(), in(rank_).data(), in(rank_).size());
    for (PendingPtr& transfer : pending) co_await std::move(transfer);
  }

  // A binomial tree: a rank that has the data sends it to the rank at half the remaining distance.
  Task broadcast_segments(int root, std::int64_t element_size, std::span<const Segment> segments, int tag) {
    const int place = (rank_ + size_ - root) % size_;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const int own_tag = tag + static_cast<int>(i) % kTagsOfOne;
      const std::int64_t bytes = segment.count * element_size;
      int distance = 1;
      while (distance < size_ && (place & distance) == 0) distance *= 2;
      if (place != 0) {
        const int from = (place - distance + root) % size_;
        co_await transport_.receive_data(from, own_tag, writable(segment.out, bytes));
      }
      const void* data = place == 0 ? segment.in : segment.out;
      std::vector<PendingPtr> pending;
      for (distance /= 2; distance >= 1; distance /= 2) {
        if (place + distance >= size_) continue;
        pending.push_back(transport_.send_data((place + distance + root) % size_, own_tag, readable(data, bytes)));
      }
      for (PendingPtr& transfer : pending) co_await std::move(transfer);
    }
  }

  Task reduce_adasum(Reduction reduction, std::span<const Segment> segments, int tag) {
    const DType wire = wire_dtype(reduction);
    const auto wire_size = static_cast<std::int64_t>(size_of(wire));
    std::vector<std::int64_t> ends;
    for (const Segment& segment : segments) ends.push_back((ends.empty() ? 0 : ends.back()) + segment.count);
    HostBuffer buffer(static_cast<std::size_t>((ends.empty() ? 0 : ends.back()) * wire_size));
    for (std::size_t i = 0; i < segments.size(); ++i) {
      convert(wire, offset(buffer.data(), (ends[i] - segments[i].count) * wire_size), reduction.dtype, segments[i].in,
              segments[i].count, reduction.prescale);
    }
    co_await adasum(transport_, tag, wire, {buffer.data(), buffer.size()}, ends);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      convert(reduction.dtype, segments[i].out, wire, offset(buffer.data(), (ends[i] - segments[i].count) * wire_size),
              segments[i].count, reduction.postscale);
    }
  }

  Transport& transport_;
  int rank_;
  int size_;
  std::int64_t piece_bytes_;
  int tag_ = 0;
};

}  // namespace

std::unique_ptr<DataPlane> make_point_to_point_plane(Transport& transport) {
  return std::make_unique<PointToPoint>(transport);
}

MakeRail make_point_to_point_rails(Transport& transport) {
  return [&transport](const std::vector<int>& ranks) -> Rail {
    auto part = transport.split(ranks);
    if (part == nullptr) return {};
    auto plane = make_point_to_point_plane(*part);
    return {.transport = std::move(part), .plane = std::move(plane)};
  };
}

}  // namespace sirtaki
