#include "plane/shm/shm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "math/streaming_copy.h"
#include "plane/pieces.h"
#include "plane/shm/shm_allreduce.h"
#include "plane/shm/shm_channel.h"
#include "plane/shm/shm_exchange.h"

namespace sirtaki {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;  // stays in the cores' caches while ranks work on it
constexpr std::size_t kPieceBytesOfMany = std::size_t{128} << 10;
constexpr std::size_t kManyBytes = std::size_t{1} << 20;  // from here on, larger pieces are enough to fill the pipeline
constexpr std::size_t kPiecesOfBroadcast = 8;
constexpr std::size_t kLeastPieceOfBroadcast = std::size_t{8} << 10;
// The largest batch for shm_allreduce_at_once() with two ranks. With more ranks it is smaller, since each rank reads
// the elements of all others.
constexpr std::size_t kOneShotBytes = std::size_t{4} << 10;
constexpr std::size_t kOneShotBytesOfMany = std::size_t{2} << 10;
constexpr std::size_t kOneShotBytesOnSharedCores = std::size_t{16} << 10;  // saves a context switch

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
  Task allgather(std::size_t element_size, const Spread& spread) override {
    return shm_allgather(channel_, element_size, spread, piece_bytes(longest_bytes(spread, element_size)));
  }
  Task reducescatter(Reduction reduction, const Spread& spread) override {
    const std::size_t longest = longest_bytes(spread, size_of(reduction.dtype));
    return shm_reducescatter(channel_, reduction, spread, piece_bytes(longest));
  }
  Task alltoall(std::size_t element_size, const Exchange& exchange) override {
    const std::size_t longest = static_cast<std::size_t>(exchange.longest) * element_size;
    return shm_alltoall(channel_, element_size, exchange, piece_bytes(longest * static_cast<std::size_t>(size_)));
  }

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
  // Data moves in one direction: the others wait while the root copies the first piece, and the root while they copy
  // the last one. So use pieces that are small, compared with the batch. But each costs a hand-over.
  std::size_t broadcast_piece_bytes(std::size_t batch_bytes) const {
    const std::size_t largest = piece_bytes(batch_bytes);
    if (!channel_.cores_are_free()) return largest;
    return std::clamp(batch_bytes / kPiecesOfBroadcast, kLeastPieceOfBroadcast, largest);
  }
  static std::size_t longest_bytes(const Spread& spread, std::size_t element_size) {
    return static_cast<std::size_t>(*std::ranges::max_element(spread.counts)) * element_size;
  }

  ShmChannel channel_;
  int rank_;
  int size_;
  std::vector<const std::byte*> inputs_;  // room for shm_allreduce_at_once()
};

Task ShmPlane::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  const std::size_t all = total_bytes(segments, element_size);
  const bool streams = all >= kStreamedBytes;
  const std::size_t piece = broadcast_piece_bytes(all) / element_size;
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
      } else if (streams) {
        streaming_copy(at(segment.out, from, element_size), shared, bytes);
      } else {
        std::memcpy(at(segment.out, from, element_size), shared, bytes);
      }
    });
    if (rank_ == root) {
      channel_.defer_done(turn);  // published with the next line: the root reads nothing
      channel_.publish_written(turn);
    } else {
      channel_.publish_done(turn);
    }
  }
}

}  // namespace

std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::string& why) {
  std::vector<std::size_t> sizes;
  for (const std::size_t slot : ShmChannel::kSlotBytes)
    sizes.push_back(ShmChannel::segment_size(transport.size(), slot));
  auto segment = ShmSegment::make(transport, sizes, why);
  return segment == nullptr ? nullptr : make_shm_plane(transport, std::move(segment));
}

std::unique_ptr<DataPlane> make_shm_plane(Transport& transport, std::unique_ptr<ShmSegment> segment) {
  return std::make_unique<ShmPlane>(ShmChannel(std::move(segment), transport));
}

std::size_t shm_plane_bytes(int ranks) { return ShmChannel::segment_size(ranks, ShmChannel::kSlotBytes.front()); }

}  // namespace sirtaki
