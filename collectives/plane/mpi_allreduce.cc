#include "plane/mpi_allreduce.h"

#include "kernels.h"
#include "plane/mpi_types.h"

namespace sirtaki {
namespace {

PieceLimits limits(DType dtype, DType wire) {
  const std::size_t size = size_of(wire);
  return {.piece = static_cast<std::int64_t>(kPieceBytes / size),
          .direct = wire == dtype ? static_cast<std::int64_t>(kDirectBytes / size) : kPackAll};
}

}  // namespace

MpiAllreducePieces::MpiAllreducePieces(const MpiCommunicator& communicator, const Reduction& reduction,
                                       std::span<const Segment> segments)
    : communicator_(communicator),
      reduction_(reduction),
      wire_(wire_dtype(reduction)),
      type_(mpi_type(wire_)),
      op_(mpi_op(reduction)),
      size_(size_of(reduction.dtype)),
      wire_size_(size_of(wire_)),
      segments_(segments),
      walk_(segments, limits(reduction.dtype, wire_)) {}

MpiRequest MpiAllreducePieces::start(const Piece& piece, Slot slot) const {
  const std::byte* in = slot.in;
  std::byte* out = slot.out;
  if (piece.packed) {
    pack(piece, slot.in);
  } else {
    const Segment& segment = segments_[piece.segment];
    out = at(segment.out, piece.offset, size_);
    in = prepare(at(segment.in, piece.offset, size_), slot.in == slot.out ? out : slot.in, out, piece.count);
  }
  return communicator_.mpi().iallreduce(in, out, static_cast<int>(piece.count), type_, op_, communicator_.comm());
}

void MpiAllreducePieces::finish(const Piece& piece, Slot slot) const {
  if (piece.packed) return unpack(piece, slot.out);
  if (reduction_.postscale == 1.0) return;
  std::byte* out = at(segments_[piece.segment].out, piece.offset, size_);
  convert(reduction_.dtype, out, reduction_.dtype, out, piece.count, reduction_.postscale);
}

// Where to reduce from. All ranks must agree whether an operation is in place, but not all have in == out. So it always
// is in place, after a copy where need be, or else never; `copy` is `out` or apart from it.
const std::byte* MpiAllreducePieces::prepare(const std::byte* in, std::byte* copy, const std::byte* out,
                                             std::int64_t count) const {
  const bool in_place = copy == out;
  if ((in == out) == in_place && reduction_.prescale == 1.0) return in;
  convert(reduction_.dtype, copy, reduction_.dtype, in, count, reduction_.prescale);
  return copy;
}

void MpiAllreducePieces::pack(const Piece& piece, std::byte* slot) const {
  walk_.for_each_part(piece,
                      [&](const Segment& segment, std::int64_t offset, std::int64_t count, std::int64_t position) {
                        convert(wire_, at(slot, position, wire_size_), reduction_.dtype, at(segment.in, offset, size_),
                                count, reduction_.prescale);
                      });
}

void MpiAllreducePieces::unpack(const Piece& piece, const std::byte* slot) const {
  walk_.for_each_part(piece,
                      [&](const Segment& segment, std::int64_t offset, std::int64_t count, std::int64_t position) {
                        convert(reduction_.dtype, at(segment.out, offset, size_), wire_, at(slot, position, wire_size_),
                                count, reduction_.postscale);
                      });
}

}  // namespace sirtaki
