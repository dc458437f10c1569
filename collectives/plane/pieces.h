// Cuts a batch into the pieces that are sent. Large segments are sent without copying, small ones are packed together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plane/data_plane.h"

namespace sirtaki {

// `count` elements, from element `offset` of a segment on. A packed piece may continue in the packed segments that
// follow.
struct Piece {
  bool packed = false;
  std::size_t segment = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

inline constexpr std::int64_t kPackAll = std::numeric_limits<std::int64_t>::max();

struct PieceLimits {
  std::int64_t piece = 0;  // most elements of one piece
  // Segments with at least so many elements are not packed. Nor is a single segment, unless this is kPackAll.
  std::int64_t direct = 0;
};

// Goes through a batch once; packed pieces come first. The pieces depend only on counts and limits, so all ranks get
// the same pieces.
class PieceWalk {
 public:
  PieceWalk(std::span<const Segment> segments, PieceLimits limits);

  // False at the end.
  bool next(Piece& piece);

  // Calls visit(segment, offset, count, position) for each part of a packed piece. `position`: the part's first element
  // in the piece.
  template <typename Visit>
  void for_each_part(const Piece& piece, Visit visit) const {
    std::size_t index = piece.segment;
    std::int64_t offset = piece.offset;
    for (std::int64_t position = 0; position < piece.count; ++index, offset = 0) {
      if (!packs(index)) continue;
      const std::int64_t count = std::min(segments_[index].count - offset, piece.count - position);
      visit(segments_[index], offset, count, position);
      position += count;
    }
  }

 private:
  bool packs(std::size_t index) const { return segments_[index].count > 0 && segments_[index].count < limits_.direct; }
  bool next_packed(Piece& piece);
  bool next_direct(Piece& piece);

  std::span<const Segment> segments_;
  PieceLimits limits_;
  std::int64_t to_pack_ = 0;  // elements that are still to be packed
  std::size_t segment_ = 0;   // where the next piece begins
  std::int64_t offset_ = 0;
};

std::size_t total_bytes(std::span<const Segment> segments, std::size_t element_size);

// All pieces of a walk.
std::vector<Piece> cut(PieceWalk walk);

}  // namespace sirtaki
