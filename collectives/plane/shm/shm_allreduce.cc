#include "plane/shm/shm_allreduce.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "math/reduce_inputs.h"
#include "plane/pieces.h"

namespace sirtaki {
namespace {

constexpr std::size_t kWordBytes = 64;  // at the beginning of a slot, for the words of a plan barrier
static_assert(sizeof(PlanBarrier::Words) <= kWordBytes);

// One rank's work on the pieces of a batch. Element numbers count from the beginning of the piece.
class PieceReducer {
 public:
  PieceReducer(ShmChannel& channel, const Reduction& reduction, const PieceWalk& walk)
      : channel_(channel),
        reduction_(reduction),
        walk_(walk),
        item_(size_of(reduction.dtype)),
        inputs_(static_cast<std::size_t>(channel.size())) {}

  void copy_in_for_others(const Piece& piece, std::uint64_t turn) {
    const Range own = own_part(piece);
    copy_in(piece, turn, {0, own.begin});
    copy_in(piece, turn, {own.end, piece.count});
  }

  // Results go back into the slots that the inputs came from. So a cache line moves only from its owner to the reducer
  // and back, by loads, which processors prefetch. Stores to lines that another core holds are several times slower.
  void reduce_own_part(const Piece& piece, std::uint64_t turn) {
    const std::int64_t block = static_cast<std::int64_t>(ShmChannel::kBlockBytes / item_);
    for_each_run(piece, own_part(piece), [&](const Segment& segment, std::int64_t from, Range range) {
      for (std::int64_t begin = range.begin; begin < range.end; begin += block, from += block) {
        const Range part{begin, std::min(range.end, begin + block)};
        reduce_run(segment, from, part, turn);
        for (int r = 0; r < channel_.size(); ++r) {
          if (r != channel_.rank()) std::memcpy(slot(r, turn, begin), out(segment, from), bytes(part));
        }
      }
    });
  }

  void copy_out_from_others(const Piece& piece, std::uint64_t turn) const {
    const Range own = own_part(piece);
    copy_out(piece, turn, {0, own.begin});
    copy_out(piece, turn, {own.end, piece.count});
  }

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };

  // A part consists of whole cache lines of the slots.
  Range own_part(const Piece& piece) const {
    const std::int64_t grain = static_cast<std::int64_t>(kCacheLine / item_);
    const std::int64_t grains = (piece.count + grain - 1) / grain;
    const auto edge = [&](int r) { return std::min(piece.count, grains * r / channel_.size() * grain); };
    return {edge(channel_.rank()), edge(channel_.rank() + 1)};
  }

  // Calls visit(segment, element of the segment, range of the piece) for each contiguous part of the range.
  template <typename Visit>
  void for_each_run(const Piece& piece, Range range, Visit visit) const {
    if (range.begin == range.end) return;
    walk_.for_each_part(piece,
                        [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
                          const Range run{std::max(position, range.begin), std::min(position + count, range.end)};
                          if (run.begin < run.end) visit(segment, from + run.begin - position, run);
                        });
  }

  void copy_in(const Piece& piece, std::uint64_t turn, Range range) const {
    for_each_run(piece, range, [&](const Segment& segment, std::int64_t from, Range run) {
      std::memcpy(slot(channel_.rank(), turn, run.begin), in(segment, from), bytes(run));
    });
  }

  void copy_out(const Piece& piece, std::uint64_t turn, Range range) const {
    for_each_run(piece, range, [&](const Segment& segment, std::int64_t from, Range run) {
      std::memcpy(out(segment, from), slot(channel_.rank(), turn, run.begin), bytes(run));
    });
  }

  void reduce_run(const Segment& segment, std::int64_t from, Range run, std::uint64_t turn) {
    for (int r = 0; r < channel_.size(); ++r) {
      inputs_[static_cast<std::size_t>(r)] = r == channel_.rank() ? in(segment, from) : slot(r, turn, run.begin);
    }
    reduce_inputs(reduction_, inputs_, out(segment, from), run.end - run.begin);
  }

  std::byte* slot(int rank, std::uint64_t turn, std::int64_t element) const {
    return channel_.slot(rank, turn) + static_cast<std::size_t>(element) * item_;
  }
  const std::byte* in(const Segment& segment, std::int64_t element) const {
    return static_cast<const std::byte*>(segment.in) + static_cast<std::size_t>(element) * item_;
  }
  std::byte* out(const Segment& segment, std::int64_t element) const {
    return static_cast<std::byte*>(segment.out) + static_cast<std::size_t>(element) * item_;
  }
  std::size_t bytes(Range run) const { return static_cast<std::size_t>(run.end - run.begin) * item_; }

  ShmChannel& channel_;
  const Reduction& reduction_;
  const PieceWalk& walk_;
  std::size_t item_;
  std::vector<const std::byte*> inputs_;  // one for each rank, of the present run
};

// One rank's work on a small batch.
struct AtOnce {
  ShmChannel& channel;
  Reduction reduction;
  std::span<const Segment> segments;
  std::span<const std::byte*> inputs;
  std::uint64_t turn;
  PlanBarrier* barrier;

  std::size_t bytes(const Segment& segment) const {
    return static_cast<std::size_t>(segment.count) * size_of(reduction.dtype);
  }

  void copy_in() const {
    std::byte* to = channel.slot(channel.rank(), turn);
    if (barrier != nullptr) {
      std::memcpy(to, barrier->words.data(), sizeof(PlanBarrier::Words));
      to += kWordBytes;
    }
    for (const Segment& segment : segments) {
      if (segment.count > 0) std::memcpy(to, segment.in, bytes(segment));
      to += bytes(segment);
    }
    channel.publish_written_last_wakes(turn);
  }

  // Call it when all ranks have written.
  void reduce() const {
    channel.set_all_done_before(turn);  // a rank that has written in this turn is done with the turn before
    if (barrier != nullptr) exchange_barrier();
    std::size_t offset = barrier == nullptr ? 0 : kWordBytes;
    const bool called_off = barrier != nullptr && barrier->called_off();
    for (const Segment& segment : called_off ? std::span<const Segment>() : segments) {
      for (int r = 0; r < channel.size(); ++r) inputs[static_cast<std::size_t>(r)] = channel.slot(r, turn) + offset;
      inputs[static_cast<std::size_t>(channel.rank())] = static_cast<const std::byte*>(segment.in);
      reduce_inputs(reduction, inputs, static_cast<std::byte*>(segment.out), segment.count);
      offset += bytes(segment);
    }
    channel.defer_done(turn);
    channel.prefetch_own_slot(turn + 1, offset);
  }

 private:
  void exchange_barrier() const {
    for (int r = 0; r < channel.size(); ++r) {
      PlanBarrier::Words theirs;
      std::memcpy(theirs.data(), channel.slot(r, turn), sizeof(theirs));
      barrier->merge(theirs);
    }
    barrier->conclude();
  }
};

Task write_and_reduce(AtOnce batch, PendingPtr may_write) {
  co_await std::move(may_write);
  batch.copy_in();
  co_await batch.channel.all_written(batch.turn);
  batch.reduce();
}

Task reduce_later(AtOnce batch, PendingPtr all_written) {
  co_await std::move(all_written);
  batch.reduce();
}

}  // namespace

// Makes a coroutine only if this rank has to wait: making one takes about as long as the exchange itself.
Task shm_allreduce_at_once(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                           std::span<const std::byte*> inputs, PlanBarrier* barrier) {
  const AtOnce batch{channel, reduction, segments, inputs, channel.take_turns(1), barrier};
  if (PendingPtr wait = channel.may_write(batch.turn)) return write_and_reduce(batch, std::move(wait));
  batch.copy_in();
  if (PendingPtr wait = channel.all_written(batch.turn)) return reduce_later(batch, std::move(wait));
  batch.reduce();
  return {};
}

// A pipeline of three stages: while a piece is copied in, the piece before it is reduced, and the one before that is
// copied out. So a rank that has written in turn t is done with turn t - 3. A rank that has reduced in turn t is done
// with turn t - 2. It publishes `done` when it writes next, which is early enough with four slots.
Task shm_allreduce_in_pieces(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                             std::size_t piece_bytes) {
  const PieceWalk walk(
      segments, {.piece = static_cast<std::int64_t>(piece_bytes / size_of(reduction.dtype)), .direct = kPackAll});
  const std::vector<Piece> pieces = cut(walk);
  const std::size_t count = pieces.size();
  PieceReducer reducer(channel, reduction, walk);
  const std::uint64_t first = channel.take_turns(count);
  for (std::size_t step = 0; step < count + 2; ++step) {
    if (step < count) {
      co_await channel.may_write(first + step);
      reducer.copy_in_for_others(pieces[step], first + step);
      channel.publish_written_last_wakes(first + step);
    }
    if (step >= 1 && step < count + 1) {
      const std::uint64_t turn = first + step - 1;
      co_await channel.all_written(turn);
      if (turn >= 2) channel.set_all_done_before(turn - 2);
      reducer.reduce_own_part(pieces[step - 1], turn);
      channel.publish_reduced(turn);
    }
    if (step >= 2) {
      const std::uint64_t turn = first + step - 2;
      co_await channel.all_reduced(turn);
      if (turn >= 1) channel.set_all_done_before(turn - 1);
      reducer.copy_out_from_others(pieces[step - 2], turn);
      channel.defer_done(turn);
    }
  }
}

}  // namespace sirtaki
