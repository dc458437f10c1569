#include "plane/shm/slice_reducer.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "math/kernels.h"
#include "math/reduce_inputs.h"

namespace sirtaki {
namespace {

const std::byte* in(const Segment& segment, std::int64_t element, std::size_t item) {
  return static_cast<const std::byte*>(segment.in) + static_cast<std::size_t>(element) * item;
}
std::byte* out(const Segment& segment, std::int64_t element, std::size_t item) {
  return static_cast<std::byte*>(segment.out) + static_cast<std::size_t>(element) * item;
}

}  // namespace

SliceReducer::SliceReducer(ShmChannel& channel, const Reduction& reduction, const PieceWalk& walk, int leaders)
    : channel_(channel),
      walk_(walk),
      leaders_(leaders),
      steps_(steps_of_library(reduction)),
      on_host_{
          .dtype = reduction.dtype, .op = reduction.op, .prescale = reduction.prescale, .divisor = halving(reduction)},
      item_(size_of(reduction.dtype)),
      wire_item_(size_of(steps_.wire)),
      inputs_(static_cast<std::size_t>(channel.size())) {}

std::int64_t SliceReducer::slice_count(const Piece& piece) const {
  const Range own = slice(piece);
  return own.end - own.begin;
}

// A slice consists of whole cache lines of the slots. It depends only on the piece and the number of leaders, so it is
// the same on all hosts.
SliceReducer::Range SliceReducer::slice(const Piece& piece) const {
  if (channel_.rank() >= leaders_) return {piece.count, piece.count};
  const std::int64_t grain = static_cast<std::int64_t>(kCacheLine / item_);
  const std::int64_t grains = (piece.count + grain - 1) / grain;
  const auto edge = [&](int leader) { return std::min(piece.count, grains * leader / leaders_ * grain); };
  return {edge(channel_.rank()), edge(channel_.rank() + 1)};
}

// Calls visit(segment, element of the segment, range of the piece) for each contiguous part of the range.
template <typename Visit>
void SliceReducer::for_each_run(const Piece& piece, Range range, Visit visit) const {
  if (range.begin == range.end) return;
  walk_.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
    const Range run{std::max(position, range.begin), std::min(position + count, range.end)};
    if (run.begin < run.end) visit(segment, from + run.begin - position, run);
  });
}

template <typename Visit>
void SliceReducer::for_each_run_of_others(const Piece& piece, Visit visit) const {
  const Range own = slice(piece);
  for_each_run(piece, {0, own.begin}, visit);
  for_each_run(piece, {own.end, piece.count}, visit);
}

void SliceReducer::copy_in(const Piece& piece, std::uint64_t turn) const {
  for_each_run_of_others(piece, [&](const Segment& segment, std::int64_t from, Range run) {
    std::memcpy(slot(channel_.rank(), turn, run.begin), in(segment, from, item_),
                static_cast<std::size_t>(run.end - run.begin) * item_);
  });
}

void SliceReducer::reduce(const Piece& piece, std::uint64_t turn, std::byte* sum) {
  const Range own = slice(piece);
  for_each_run(piece, own, [&](const Segment& segment, std::int64_t from, Range run) {
    for (int r = 0; r < channel_.size(); ++r) {
      const bool mine = r == channel_.rank();
      inputs_[static_cast<std::size_t>(r)] = mine ? in(segment, from, item_) : slot(r, turn, run.begin);
    }
    reduce_inputs_to_wire(on_host_, steps_.wire, inputs_,
                          sum + static_cast<std::size_t>(run.begin - own.begin) * wire_item_, run.end - run.begin);
  });
}

void SliceReducer::spread(const Piece& piece, std::uint64_t turn, const std::byte* result) const {
  const Range own = slice(piece);
  const std::int64_t block = static_cast<std::int64_t>(ShmChannel::kBlockBytes / item_);
  for_each_run(piece, own, [&](const Segment& segment, std::int64_t from, Range run) {
    for (std::int64_t begin = run.begin; begin < run.end; begin += block, from += block) {
      const std::int64_t count = std::min(run.end - begin, block);
      std::byte* to = out(segment, from, item_);
      convert(on_host_.dtype, to, steps_.wire, result + static_cast<std::size_t>(begin - own.begin) * wire_item_, count,
              steps_.after);
      for (int r = 0; r < channel_.size(); ++r) {
        if (r != channel_.rank()) std::memcpy(slot(r, turn, begin), to, static_cast<std::size_t>(count) * item_);
      }
    }
  });
}

void SliceReducer::copy_out(const Piece& piece, std::uint64_t turn) const {
  for_each_run_of_others(piece, [&](const Segment& segment, std::int64_t from, Range run) {
    std::memcpy(out(segment, from, item_), slot(channel_.rank(), turn, run.begin),
                static_cast<std::size_t>(run.end - run.begin) * item_);
  });
}

std::byte* SliceReducer::slot(int rank, std::uint64_t turn, std::int64_t element) const {
  return channel_.slot(rank, turn) + static_cast<std::size_t>(element) * item_;
}

}  // namespace sirtaki
