#include "plane/shm/shm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "math/reduce_inputs.h"
#include "plane/pieces.h"
#include "plane/shm/shm_allreduce.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {
namespace {

// The smaller sizes are for jobs with many ranks or a small /dev/shm.
constexpr std::array<std::size_t, 3> kSlotBytes = {512 << 10, 128 << 10, 64 << 10};
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;  // stays in the cores' caches while ranks work on it
constexpr std::size_t kPieceBytesOfMany = std::size_t{128} << 10;
constexpr std::size_t kManyBytes = std::size_t{1} << 20;  // from here on, larger pieces are enough to fill the pipeline
// The largest batch for shm_allreduce_at_once() with two ranks. With more ranks it is smaller, since each rank reads
// the elements of all others.
constexpr std::size_t kOneShotBytes = std::size_t{4} << 10;
constexpr std::size_t kOneShotBytesOfMany = std::size_t{2} << 10;
constexpr std::size_t kOneShotBytesOnSharedCores = std::size_t{16} << 10;  // saves a context switch
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

class ShmPlane final : public DataPlane {
 public:
  explicit ShmPlane(ShmChannel channel)
      : channel_(std::move(channel)),
        rank_(channel_.rank()),
        size_(channel_.size()),
        inputs_(static_cast<std::size_t>(size_)) {}

  std::string_view name() const override { return "shm"; }
  bool wakes() const override { return channel_.wakes(); }

  bool supports(const PlaneQuery& query) const override {
    return query.device == kHostDevice && query.op != ReduceOp::kAdasum && moves_data(query.verb);
  }

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    const std::size_t bytes = total_bytes(segments, size_of(reduction.dtype));
    if (is_small(bytes)) return shm_allreduce_at_once(channel_, reduction, segments, inputs_);
    return shm_allreduce_in_pieces(channel_, reduction, segments, piece_bytes(bytes));
  }

  // A rank that calls the batch off uses exactly one turn, the barrier's. The others also use one before they see that,
  // so turn numbers stay equal.
  Task allreduce_behind_barrier(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments) override {
    if (is_small(total_bytes(segments, size_of(reduction.dtype))))
      return shm_allreduce_at_once(channel_, reduction, segments, inputs_, &barrier);
    return pass_barrier_first(barrier, reduction, segments);
  }

  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override;
  Task allgather(std::size_t element_size, const Spread& spread) override;
  Task reducescatter(Reduction reduction, const Spread& spread) override;
  Task alltoall(std::size_t element_size, const Exchange& exchange) override;

 private:
  bool is_small(std::size_t bytes) const {
    if (!channel_.cores_are_free()) return bytes <= kOneShotBytesOnSharedCores;
    return bytes <= (size_ == 2 ? kOneShotBytes : kOneShotBytesOfMany);
  }

  Task pass_barrier_first(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments) {
    co_await shm_allreduce_at_once(channel_, {}, {}, inputs_, &barrier);
    if (!barrier.called_off()) co_await allreduce(reduction, segments);
  }

  // Where ranks share cores, each wait for a peer costs a context switch. So use few large pieces.
  std::size_t piece_bytes(std::size_t batch_bytes) const {
    if (!channel_.cores_are_free()) return channel_.slot_size();
    return std::min(channel_.slot_size(), batch_bytes < kManyBytes ? kPieceBytes : kPieceBytesOfMany);
  }
  std::byte* part(int owner, int index, std::uint64_t turn) const {
    return channel_.slot(owner, turn) + static_cast<std::size_t>(index) * part_bytes();
  }
  std::size_t part_bytes() const { return channel_.slot_size() / static_cast<std::size_t>(size_) / kLine * kLine; }

  ShmChannel channel_;
  int rank_;
  int size_;
  std::vector<const std::byte*> inputs_;  // room for shm_allreduce_at_once()
};

Task ShmPlane::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  const std::size_t piece = piece_bytes(total_bytes(segments, element_size)) / element_size;
  const PieceWalk walk(segments, {.piece = static_cast<std::int64_t>(piece), .direct = kPackAll});
  for (const Piece& each : cut(walk)) {
    const std::uint64_t turn = channel_.take_turns(1);
    std::byte* slot = channel_.slot(root, turn);
    if (rank_ == root) {
      co_await channel_.may_write(turn);
    } else {
      co_await channel_.written_by(root, turn);
    }
    walk.for_each_part(each, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
      std::byte* shared = at(slot, position, element_size);
      const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
      if (rank_ == root) {
        std::memcpy(shared, at(segment.in, from, element_size), bytes);
      } else {
        std::memcpy(at(segment.out, from, element_size), shared, bytes);
      }
    });
    if (rank_ == root) channel_.publish_written(turn);
    channel_.publish_done(turn);
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
    if (bytes(rank_) > 0) std::memcpy(channel_.slot(rank_, turn), at(spread.in, done, element_size), bytes(rank_));
    channel_.publish_written(turn);
    for (int k = 0; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      co_await channel_.written_by(r, turn);
      const std::int64_t to = starts[static_cast<std::size_t>(r)] + done;
      const void* from = r == rank_ ? at(spread.in, done, element_size) : channel_.slot(r, turn);
      if (bytes(r) > 0) std::memmove(at(spread.out, to, element_size), from, bytes(r));
    }
    channel_.publish_done(turn);
  }
}

Task ShmPlane::reducescatter(Reduction reduction, const Spread& spread) {
  const std::size_t item = size_of(reduction.dtype);
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const auto step = static_cast<std::int64_t>(part_bytes() / item);
  for (std::int64_t done = 0; done < longest; done += step) {
    const auto length = [&](int r) {
      return std::clamp<std::int64_t>(spread.counts[static_cast<std::size_t>(r)] - done, 0, step);
    };
    const auto own = [&](int r) { return at(spread.in, starts[static_cast<std::size_t>(r)] + done, item); };
    const std::uint64_t turn = channel_.take_turns(1);
    co_await channel_.may_write(turn);
    for (int r = 0; r < size_; ++r) {
      const std::size_t bytes = static_cast<std::size_t>(length(r)) * item;
      if (r != rank_ && bytes > 0) std::memcpy(part(rank_, r, turn), own(r), bytes);
    }
    channel_.publish_written_last_wakes(turn);
    co_await channel_.all_written(turn);
    for (int r = 0; r < size_; ++r) inputs_[static_cast<std::size_t>(r)] = r == rank_ ? own(r) : part(r, rank_, turn);
    reduce_inputs(reduction, inputs_, at(spread.out, done, item), length(rank_));
    channel_.publish_done(turn);
  }
}

Task ShmPlane::alltoall(std::size_t element_size, const Exchange& exchange) {
  const std::vector<std::int64_t> sends = starts_of(exchange.send_counts);
  const std::vector<std::int64_t> receives = starts_of(exchange.receive_counts);
  // A rank knows only its own counts, but the largest count of all ranks decides how many turns are needed.
  const std::uint64_t opening = channel_.take_turns(1);
  co_await channel_.may_write(opening);
  std::int64_t longest = *std::max_element(exchange.send_counts.begin(), exchange.send_counts.end());
  std::memcpy(channel_.slot(rank_, opening), &longest, sizeof(longest));
  channel_.publish_written_last_wakes(opening);
  co_await channel_.all_written(opening);
  for (int r = 0; r < size_; ++r) {
    std::int64_t theirs = 0;
    std::memcpy(&theirs, channel_.slot(r, opening), sizeof(theirs));
    longest = std::max(longest, theirs);
  }
  channel_.publish_done(opening);
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
    channel_.publish_written(turn);
    for (int k = 0; k < size_; ++k) {
      const int r = (rank_ + k) % size_;
      co_await channel_.written_by(r, turn);
      const std::size_t length = bytes(exchange.receive_counts, r);
      const std::int64_t to = receives[static_cast<std::size_t>(r)] + done;
      if (length > 0) std::memcpy(at(exchange.out, to, element_size), part(r, rank_, turn), length);
    }
    channel_.publish_done(turn);
  }
}

}  // namespace

std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::string& why) {
  std::vector<std::size_t> sizes;
  for (const std::size_t slot : kSlotBytes) sizes.push_back(ShmChannel::segment_size(transport.size(), slot));
  auto segment = ShmSegment::make(transport, sizes, why);
  return segment == nullptr ? nullptr : make_shm_plane(transport, std::move(segment));
}

std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::unique_ptr<ShmSegment> segment) {
  return std::make_unique<ShmPlane>(ShmChannel(std::move(segment), transport));
}

std::size_t shm_plane_bytes(int ranks) { return ShmChannel::segment_size(ranks, kSlotBytes.front()); }

}  // namespace sirtaki
