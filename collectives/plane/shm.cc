#include "plane/shm.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "host_buffer.h"
#include "kernels.h"
#include "plane/pieces.h"
#include "plane/shm_channel.h"

namespace sirtaki {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{512} << 10;
constexpr std::size_t kPieceBytesWithCores = std::size_t{128}
                                             << 10;  // stays in a core's cache while it is handed around
constexpr std::size_t kOneShotBytes = std::size_t{64} << 10;
constexpr std::int64_t kBlockBytes = 16 << 10;  // what is reduced and written back at a time stays in the first cache
constexpr std::int64_t kLine = 64;

std::byte* at(void* base, std::int64_t index, std::size_t size) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(size);
}
const std::byte* at(const void* base, std::int64_t index, std::size_t size) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size);
}

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> starts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

// A hand-over between processes that share a core costs a context switch, so there must be fewer of them.
std::size_t piece_bytes(int ranks) {
  return ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? kPieceBytesWithCores : kSlotBytes;
}

class ShmPlane final : public DataPlane {
 public:
  explicit ShmPlane(ShmChannel channel)
      : channel_(std::move(channel)),
        rank_(channel_.rank()),
        size_(channel_.size()),
        piece_bytes_(piece_bytes(channel_.size())) {}

  std::string_view name() const override { return "shm"; }

  bool supports(const PlaneQuery& query) const override {
    return query.device == kHostDevice && query.op != ReduceOp::kAdasum && moves_data(query.verb);
  }

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    std::int64_t count = 0;
    for (const Segment& segment : segments) count += segment.count;
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(wire_dtype(reduction));
    return bytes <= kOneShotBytes ? reduce_at_once(reduction, segments) : reduce_in_pieces(reduction, segments);
  }

  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override;
  Task allgather(std::size_t element_size, const Spread& spread) override;
  Task reducescatter(Reduction reduction, const Spread& spread) override;
  Task alltoall(std::size_t element_size, const Exchange& exchange) override;

 private:
  Task reduce_at_once(Reduction reduction, std::span<const Segment> segments);
  Task reduce_in_pieces(Reduction reduction, std::span<const Segment> segments);

  std::vector<Piece> cut(const PieceWalk& walk) const;
  void copy_in(const Reduction& reduction, const PieceWalk& walk, const Piece& piece, std::byte* slot) const;
  void copy_out(const Reduction& reduction, const PieceWalk& walk, const Piece& piece, const std::byte* slot) const;
  void reduce_own_part(DType wire, ReduceOp op, std::int64_t count, std::uint64_t turn) const;
  std::byte* part(int owner, int index, std::uint64_t turn) const {
    return channel_.slot(owner, turn) + static_cast<std::size_t>(index) * part_bytes();
  }
  std::size_t part_bytes() const { return channel_.slot_size() / static_cast<std::size_t>(size_) / kLine * kLine; }

  ShmChannel channel_;
  int rank_;
  int size_;
  std::size_t piece_bytes_;
  HostBuffer scratch_{kOneShotBytes};
};

PieceWalk walk_of(std::span<const Segment> segments, std::size_t piece_bytes, std::size_t element_size) {
  return PieceWalk(segments, {.piece = static_cast<std::int64_t>(piece_bytes / element_size), .direct = kPackAll});
}

std::vector<Piece> ShmPlane::cut(const PieceWalk& walk) const {
  std::vector<Piece> pieces;
  PieceWalk steps = walk;
  for (Piece piece; steps.next(piece);) pieces.push_back(piece);
  return pieces;
}

void ShmPlane::copy_in(const Reduction& reduction, const PieceWalk& walk, const Piece& piece, std::byte* slot) const {
  const DType wire = wire_dtype(reduction);
  walk.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
    convert(wire, at(slot, position, size_of(wire)), reduction.dtype, at(segment.in, from, size_of(reduction.dtype)),
            count, reduction.prescale);
  });
}

void ShmPlane::copy_out(const Reduction& reduction, const PieceWalk& walk, const Piece& piece,
                        const std::byte* slot) const {
  const DType wire = wire_dtype(reduction);
  walk.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
    convert(reduction.dtype, at(segment.out, from, size_of(reduction.dtype)), wire, at(slot, position, size_of(wire)),
            count, reduction.postscale);
  });
}

// Every rank reduces everything for itself: one hand-over.
Task ShmPlane::reduce_at_once(Reduction reduction, std::span<const Segment> segments) {
  const DType wire = wire_dtype(reduction);
  const PieceWalk walk = walk_of(segments, kOneShotBytes, size_of(wire));
  const std::vector<Piece> pieces = cut(walk);
  if (pieces.empty()) co_return;
  const Piece& all = pieces.front();
  const std::uint64_t turn = channel_.take_turns(1);
  co_await channel_.may_write(turn);
  copy_in(reduction, walk, all, channel_.slot(rank_, turn));
  channel_.say_written(turn);
  co_await channel_.all_written(turn);
  std::byte* sum = scratch_.data();
  std::memcpy(sum, channel_.slot(0, turn), static_cast<std::size_t>(all.count) * size_of(wire));
  for (int r = 1; r < size_; ++r) reduce(wire, reduction.op, sum, channel_.slot(r, turn), all.count);
  channel_.say_done(turn);
  copy_out(reduction, walk, all, sum);
}

// A pipeline of three stages: while a piece is copied in, the one before is reduced and the one before that copied out.
Task ShmPlane::reduce_in_pieces(Reduction reduction, std::span<const Segment> segments) {
  const DType wire = wire_dtype(reduction);
  const PieceWalk walk = walk_of(segments, piece_bytes_, size_of(wire));
  const std::vector<Piece> pieces = cut(walk);
  const std::size_t count = pieces.size();
  const std::uint64_t first = channel_.take_turns(count);
  for (std::size_t step = 0; step < count + 2; ++step) {
    if (step < count) {
      const std::uint64_t turn = first + step;
      co_await channel_.may_write(turn);
      copy_in(reduction, walk, pieces[step], channel_.slot(rank_, turn));
      channel_.say_written(turn);
    }
    if (step >= 1 && step < count + 1) {
      const std::uint64_t turn = first + step - 1;
      co_await channel_.all_written(turn);
      reduce_own_part(wire, reduction.op, pieces[step - 1].count, turn);
      channel_.say_reduced(turn);
    }
    if (step >= 2) {
      const std::uint64_t turn = first + step - 2;
      co_await channel_.all_reduced(turn);
      copy_out(reduction, walk, pieces[step - 2], channel_.slot(rank_, turn));
      channel_.say_done(turn);
    }
  }
}

// The result goes back into the slots it came from: a line then only moves from its owner to the reducer and back, by
// loads, which processors fetch ahead; stores to lines that another core holds are several times slower.
void ShmPlane::reduce_own_part(DType wire, ReduceOp op, std::int64_t count, std::uint64_t turn) const {
  const std::size_t size = size_of(wire);
  const std::int64_t grain = kLine / static_cast<std::int64_t>(size);
  const std::int64_t grains = (count + grain - 1) / grain;
  const std::int64_t begin = std::min(count, grains * rank_ / size_ * grain);
  const std::int64_t end = std::min(count, grains * (rank_ + 1) / size_ * grain);
  const std::int64_t block = kBlockBytes / static_cast<std::int64_t>(size);
  for (std::int64_t from = begin; from < end; from += block) {
    const std::int64_t length = std::min(block, end - from);
    std::byte* sum = at(channel_.slot(0, turn), from, size);
    for (int r = 1; r < size_; ++r) reduce(wire, op, sum, at(channel_.slot(r, turn), from, size), length);
    for (int r = 1; r < size_; ++r) {
      std::memcpy(at(channel_.slot(r, turn), from, size), sum, static_cast<std::size_t>(length) * size);
    }
  }
}

Task ShmPlane::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  const PieceWalk walk = walk_of(segments, piece_bytes_, element_size);
  for (const Piece& piece : cut(walk)) {
    const std::uint64_t turn = channel_.take_turns(1);
    std::byte* slot = channel_.slot(root, turn);
    if (rank_ == root) {
      co_await channel_.may_write(turn);
    } else {
      co_await channel_.written_by(root, turn);
    }
    walk.for_each_part(piece,
                       [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
                         const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
                         if (rank_ == root) {
                           std::memcpy(at(slot, position, element_size), at(segment.in, from, element_size), bytes);
                         } else {
                           std::memcpy(at(segment.out, from, element_size), at(slot, position, element_size), bytes);
                         }
                       });
    if (rank_ == root) channel_.say_written(turn);
    channel_.say_done(turn);
  }
}

Task ShmPlane::allgather(std::size_t element_size, const Spread& spread) {
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const auto step = static_cast<std::int64_t>(channel_.slot_size() / element_size);
  for (std::int64_t done = 0; done < longest; done += step) {
    const auto bytes = [&](int r) {
      const std::int64_t left = spread.counts[static_cast<std::size_t>(r)] - done;
      return static_cast<std::size_t>(std::clamp<std::int64_t>(left, 0, step)) * element_size;
    };
    const std::uint64_t turn = channel_.take_turns(1);
    co_await channel_.may_write(turn);
    std::memcpy(channel_.slot(rank_, turn), at(spread.in, done, element_size), bytes(rank_));
    channel_.say_written(turn);
    for (int k = 0; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      co_await channel_.written_by(r, turn);
      const std::int64_t to = starts[static_cast<std::size_t>(r)] + done;
      if (bytes(r) > 0) std::memcpy(at(spread.out, to, element_size), channel_.slot(r, turn), bytes(r));
    }
    channel_.say_done(turn);
  }
}

Task ShmPlane::reducescatter(Reduction reduction, const Spread& spread) {
  const DType wire = wire_dtype(reduction);
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const auto step = static_cast<std::int64_t>(part_bytes() / size_of(wire));
  for (std::int64_t done = 0; done < longest; done += step) {
    const auto length = [&](int r) {
      return std::clamp<std::int64_t>(spread.counts[static_cast<std::size_t>(r)] - done, 0, step);
    };
    const std::uint64_t turn = channel_.take_turns(1);
    co_await channel_.may_write(turn);
    for (int r = 0; r < size_; ++r) {
      const std::int64_t from = starts[static_cast<std::size_t>(r)] + done;
      convert(wire, part(rank_, r, turn), reduction.dtype, at(spread.in, from, size_of(reduction.dtype)), length(r),
              reduction.prescale);
    }
    channel_.say_written(turn);
    co_await channel_.all_written(turn);
    // Only this rank reads its parts, so one of them may hold the sum.
    std::byte* sum = part(0, rank_, turn);
    for (int r = 1; r < size_; ++r) reduce(wire, reduction.op, sum, part(r, rank_, turn), length(rank_));
    convert(reduction.dtype, at(spread.out, done, size_of(reduction.dtype)), wire, sum, length(rank_),
            reduction.postscale);
    channel_.say_done(turn);
  }
}

Task ShmPlane::alltoall(std::size_t element_size, const Exchange& exchange) {
  const std::vector<std::int64_t> sends = starts_of(exchange.send_counts);
  const std::vector<std::int64_t> receives = starts_of(exchange.receive_counts);
  // A rank knows only its own counts; how many turns all need follows from the largest.
  const std::uint64_t opening = channel_.take_turns(1);
  co_await channel_.may_write(opening);
  std::int64_t longest = *std::max_element(exchange.send_counts.begin(), exchange.send_counts.end());
  std::memcpy(channel_.slot(rank_, opening), &longest, sizeof(longest));
  channel_.say_written(opening);
  co_await channel_.all_written(opening);
  for (int r = 0; r < size_; ++r) {
    std::int64_t theirs = 0;
    std::memcpy(&theirs, channel_.slot(r, opening), sizeof(theirs));
    longest = std::max(longest, theirs);
  }
  channel_.say_done(opening);
  const auto step = static_cast<std::int64_t>(part_bytes() / element_size);
  for (std::int64_t done = 0; done < longest; done += step) {
    const auto bytes = [&](const std::vector<std::int64_t>& counts, int r) {
      const std::int64_t left = counts[static_cast<std::size_t>(r)] - done;
      return static_cast<std::size_t>(std::clamp<std::int64_t>(left, 0, step)) * element_size;
    };
    const std::uint64_t turn = channel_.take_turns(1);
    co_await channel_.may_write(turn);
    for (int r = 0; r < size_; ++r) {
      const std::size_t length = bytes(exchange.send_counts, r);
      const std::int64_t from = sends[static_cast<std::size_t>(r)] + done;
      if (length > 0) std::memcpy(part(rank_, r, turn), at(exchange.in, from, element_size), length);
    }
    channel_.say_written(turn);
    for (int k = 0; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      co_await channel_.written_by(r, turn);
      const std::size_t length = bytes(exchange.receive_counts, r);
      const std::int64_t to = receives[static_cast<std::size_t>(r)] + done;
      if (length > 0) std::memcpy(at(exchange.out, to, element_size), part(r, rank_, turn), length);
    }
    channel_.say_done(turn);
  }
}

}  // namespace

std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::string& why) {
  const int size = transport.size();
  auto segment = ShmSegment::make(transport, ShmChannel::segment_size(size, kSlotBytes), why);
  if (segment == nullptr) return nullptr;
  return std::make_unique<ShmPlane>(ShmChannel(std::move(segment), transport.rank(), size, kSlotBytes));
}

}  // namespace sirtaki
