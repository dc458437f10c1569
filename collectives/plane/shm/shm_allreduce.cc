#include "plane/shm/shm_allreduce.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "math/reduce_inputs.h"
#include "plane/pieces.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kBlockBytes = 16 << 10;  // what is reduced and written back at a time stays in the first cache
constexpr std::int64_t kLine = 64;
constexpr std::size_t kWordBytes = 64;  // of a slot, for those of a meeting
static_assert(sizeof(PlanBarrier::Words) <= kWordBytes);

// One piece after the other, as one rank sees it. Elements are numbered from the beginning of the piece.
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

  // The result goes back into the slots it came from: a line then only moves from its owner to the reducer and back, by
  // loads, which processors fetch ahead; stores to lines that another core holds are several times slower.
  void reduce_own_part(const Piece& piece, std::uint64_t turn) {
    const std::int64_t block = kBlockBytes / static_cast<std::int64_t>(item_);
    for_each_run(piece, own_part(piece), [&](const Segment& segment, std::int64_t from, Range range) {
      for (std::int64_t begin = range.begin; begin < range.end; begin += block, from += block) {
        const Range part{begin, std::min(range.end, begin + block)};
        fold_run(segment, from, part, turn);
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

  // Whole cache lines of the slots.
  Range own_part(const Piece& piece) const {
    const std::int64_t grain = kLine / static_cast<std::int64_t>(item_);
    const std::int64_t grains = (piece.count + grain - 1) / grain;
    const auto edge = [&](int r) { return std::min(piece.count, grains * r / channel_.size() * grain); };
    return {edge(channel_.rank()), edge(channel_.rank() + 1)};
  }

  // visit(segment, element of the segment, range of the piece) for each stretch of memory that a range consists of.
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

  void fold_run(const Segment& segment, std::int64_t from, Range run, std::uint64_t turn) {
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
  std::vector<const std::byte*> inputs_;  // of the ranks, for one run
};

// One small batch, as one rank sees it.
struct AtOnce {
  ShmChannel& channel;
  Reduction reduction;
  std::span<const Segment> segments;
  std::span<const std::byte*> inputs;
  std::uint64_t turn;
  PlanBarrier* meeting;

  std::size_t bytes(const Segment& segment) const {
    return static_cast<std::size_t>(segment.count) * size_of(reduction.dtype);
  }

  void copy_in() const {
    std::byte* to = channel.slot(channel.rank(), turn);
    if (meeting != nullptr) {
      std::memcpy(to, meeting->words.data(), sizeof(PlanBarrier::Words));
      to += kWordBytes;
    }
    for (const Segment& segment : segments) {
      if (segment.count > 0) std::memcpy(to, segment.in, bytes(segment));
      to += bytes(segment);
    }
    channel.say_written_among_all(turn);
  }

  // When all have written.
  void reduce() const {
    channel.know_all_done_before(turn);  // whoever has written in this turn has left the one before
    std::size_t offset = 0;
    if (meeting != nullptr) {
      hear_others();
      offset += kWordBytes;
    }
    if (meeting == nullptr || !meeting->called_off()) fold_all(offset);
    channel.note_done(turn);
    channel.fetch_own_slot(turn + 1, offset);
  }

 private:
  void hear_others() const {
    for (int r = 0; r < channel.size(); ++r) {
      PlanBarrier::Words theirs;
      std::memcpy(theirs.data(), channel.slot(r, turn), sizeof(theirs));
      meeting->hear(theirs);
    }
    meeting->conclude();
  }

  // From `offset` of the slots on, which then is where the elements end.
  void fold_all(std::size_t& offset) const {
    for (const Segment& segment : segments) {
      for (int r = 0; r < channel.size(); ++r) inputs[static_cast<std::size_t>(r)] = channel.slot(r, turn) + offset;
      inputs[static_cast<std::size_t>(channel.rank())] = static_cast<const std::byte*>(segment.in);
      reduce_inputs(reduction, inputs, static_cast<std::byte*>(segment.out), segment.count);
      offset += bytes(segment);
    }
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

// A coroutine only if a rank keeps us waiting: making one takes about as long as the hand-over.
Task shm_allreduce_at_once(ShmChannel& channel, Reduction reduction, std::span<const Segment> segments,
                           std::span<const std::byte*> inputs, PlanBarrier* meeting) {
  const AtOnce batch{channel, reduction, segments, inputs, channel.take_turns(1), meeting};
  if (PendingPtr wait = channel.may_write(batch.turn)) return write_and_reduce(batch, std::move(wait));
  batch.copy_in();
  if (PendingPtr wait = channel.all_written(batch.turn)) return reduce_later(batch, std::move(wait));
  batch.reduce();
  return {};
}

// A pipeline of three stages: while a piece is copied in, the one before is reduced and the one before that copied out.
// So a rank that has written in turn t is done with turn t - 3, and one that has reduced in turn t with turn t - 2;
// it publishes what it is done with when it writes next, which is early enough with four slots.
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
      channel.say_written_among_all(first + step);
    }
    if (step >= 1 && step < count + 1) {
      const std::uint64_t turn = first + step - 1;
      co_await channel.all_written(turn);
      if (turn >= 2) channel.know_all_done_before(turn - 2);
      reducer.reduce_own_part(pieces[step - 1], turn);
      channel.say_reduced(turn);
    }
    if (step >= 2) {
      const std::uint64_t turn = first + step - 2;
      co_await channel.all_reduced(turn);
      if (turn >= 1) channel.know_all_done_before(turn - 1);
      reducer.copy_out_from_others(pieces[step - 2], turn);
      channel.note_done(turn);
    }
  }
}

}  // namespace sirtaki
