#include "plane/pieces.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kGrain = 64;  // elements; keeps pieces of one segment aligned to each other

// Makes pieces of equal size, instead of full pieces and a small last one.
std::int64_t even_piece(std::int64_t count, std::int64_t limit) {
  const std::int64_t pieces = (count + limit - 1) / limit;
  const std::int64_t even = (count + pieces - 1) / pieces;
  return std::min((even + kGrain - 1) / kGrain * kGrain, limit);
}

}  // namespace

PieceWalk::PieceWalk(std::span<const Segment> segments, PieceLimits limits) : segments_(segments), limits_(limits) {
  std::size_t filled = 0;
  for (const Segment& segment : segments) filled += segment.count > 0;
  if (filled == 1 && limits_.direct != kPackAll) limits_.direct = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (packs(i)) to_pack_ += segments[i].count;
  }
}

bool PieceWalk::next(Piece& piece) { return to_pack_ > 0 ? next_packed(piece) : next_direct(piece); }

bool PieceWalk::next_packed(Piece& piece) {
  piece = {.packed = true, .segment = segment_, .offset = offset_, .count = std::min(to_pack_, limits_.piece)};
  to_pack_ -= piece.count;
  if (to_pack_ == 0) {
    segment_ = 0;
    offset_ = 0;
    return true;
  }
  for (std::int64_t left = piece.count; left > 0;) {
    const std::int64_t rest = packs(segment_) ? segments_[segment_].count - offset_ : 0;
    if (rest > left) {
      offset_ += left;
      break;
    }
    left -= rest;
    offset_ = 0;
    ++segment_;
  }
  return true;
}

bool PieceWalk::next_direct(Piece& piece) {
  while (segment_ < segments_.size() && (packs(segment_) || offset_ == segments_[segment_].count)) {
    offset_ = 0;
    ++segment_;
  }
  if (segment_ == segments_.size()) return false;
  const std::int64_t count = segments_[segment_].count;
  piece = {.packed = false, .segment = segment_, .offset = offset_, .count = 0};
  piece.count = std::min(even_piece(count, limits_.piece), count - offset_);
  offset_ += piece.count;
  return true;
}

std::size_t total_bytes(std::span<const Segment> segments, std::size_t element_size) {
  std::int64_t count = 0;
  for (const Segment& segment : segments) count += segment.count;
  return static_cast<std::size_t>(count) * element_size;
}

std::vector<Piece> cut(PieceWalk walk) {
  std::vector<Piece> pieces;
  for (Piece piece; walk.next(piece);) pieces.push_back(piece);
  return pieces;
}

}  // namespace sirtaki
