#include "plane/mpi/mpi_allreduce.h"

#include "math/kernels.h"
#include "plane/mpi/mpi_types.h"

namespace sirtaki {
namespace {

// For pieces from this size on and few ranks, MpiExchange is faster than MPI_Iallreduce; with Open MPI twice as fast.
constexpr std::size_t kExchangeBytes = std::size_t{4} << 10;
constexpr int kExchangeRanks = 8;

// When at least this many ranks reduce in place, Open MPI uses a tree, which sends whole tensors many times.
constexpr int kTreeRanks = 4;

PieceLimits limits(DType dtype, DType wire) {
  const std::size_t size = size_of(wire);
  return {.piece = static_cast<std::int64_t>(kPieceBytes / size),
          .direct = wire == dtype ? static_cast<std::int64_t>(kDirectBytes / size) : kPackAll};
}

}  // namespace

MpiAllreducePieces::MpiAllreducePieces(const MpiCommunicator& communicator, const Reduction& reduction,
                                       std::span<const Segment> segments)
    : communicator_(communicator),
      dtype_(reduction.dtype),
      by_mpi_(steps_of_library(reduction)),
      by_exchange_(steps_of_fold(reduction)),
      wire_(by_mpi_.wire),
      type_(mpi_type(wire_)),
      op_(mpi_op(reduction)),
      item_(size_of(reduction.dtype)),
      wire_item_(size_of(wire_)),
      size_(communicator.size()),
      own_way_(communicator.mpi().abi() == "openmpi" && size_ >= kTreeRanks ? Way::kApart : Way::kInPlace),
      exchange_(communicator, by_exchange_.combine),
      segments_(segments),
      walk_(segments, limits(reduction.dtype, wire_)) {}

MpiAllreducePieces::Way MpiAllreducePieces::way(const Piece& piece) const {
  const bool large = static_cast<std::size_t>(piece.count) * wire_item_ >= kExchangeBytes;
  return large && size_ > 1 && size_ <= kExchangeRanks ? Way::kExchange : own_way_;
}

const ReductionSteps& MpiAllreducePieces::steps(const Piece& piece) const {
  return way(piece) == Way::kExchange ? by_exchange_ : by_mpi_;
}

// MPI requires that either all ranks reduce in place or none does, but only some ranks may have in == out. So for
// kInPlace, ranks with in != out first copy `in` to `out`. For kApart, ranks with in == out first copy `in` elsewhere.
MpiAllreducePieces::Place MpiAllreducePieces::place(const Piece& piece, StagingSlot slot) const {
  const Way way = this->way(piece);
  if (piece.packed) return {slot.first, way == Way::kApart ? slot.second : slot.first};
  const Segment& segment = segments_[piece.segment];
  const std::byte* in = at(segment.in, piece.offset, item_);
  std::byte* out = at(segment.out, piece.offset, item_);
  const bool scales = steps(piece).before != 1.0;
  if (way == Way::kApart) return {scales || in == out ? slot.first : in, out};
  return {scales || way == Way::kInPlace ? out : in, out};
}

ExchangedPiece MpiAllreducePieces::exchanged(const Piece& piece, StagingSlot slot) const {
  const auto [in, out] = place(piece, slot);
  return {.in = in, .out = out, .scratch = slot.second, .count = piece.count, .tag = slot.number};
}

void MpiAllreducePieces::start(const Piece& piece, StagingSlot slot, MpiRequests& requests) const {
  prepare(piece, slot);
  if (way(piece) == Way::kExchange) return exchange_.scatter(exchanged(piece, slot), requests);
  const auto [in, out] = place(piece, slot);
  const auto count = static_cast<int>(piece.count);
  requests.push_back(communicator_.mpi().iallreduce(in, out, count, type_, op_, communicator_.comm()));
}

bool MpiAllreducePieces::resume(const Piece& piece, StagingSlot slot, int stage, MpiRequests& requests) const {
  if (stage == 0 && way(piece) == Way::kExchange) {
    exchange_.gather(exchanged(piece, slot), requests);
    return true;
  }
  finish(piece, slot);
  return false;
}

void MpiAllreducePieces::prepare(const Piece& piece, StagingSlot slot) const {
  const double before = steps(piece).before;
  if (piece.packed) {
    walk_.for_each_part(
        piece, [&](const Segment& from, std::int64_t offset, std::int64_t count, std::int64_t position) {
          convert(wire_, at(slot.first, position, wire_item_), dtype_, at(from.in, offset, item_), count, before);
        });
    return;
  }
  const Place to = place(piece, slot);
  const std::byte* in = at(segments_[piece.segment].in, piece.offset, item_);
  if (to.in == in && before == 1.0) return;
  // Here `to.in` is the slot's memory or the segment's output, so it may be written.
  convert(wire_, const_cast<std::byte*>(to.in), dtype_, in, piece.count, before);
}

void MpiAllreducePieces::finish(const Piece& piece, StagingSlot slot) const {
  std::byte* result = place(piece, slot).out;
  const Scale after = steps(piece).after;
  if (piece.packed) {
    walk_.for_each_part(piece, [&](const Segment& to, std::int64_t offset, std::int64_t count, std::int64_t position) {
      convert(dtype_, at(to.out, offset, item_), wire_, at(result, position, wire_item_), count, after);
    });
  } else if (!after.is_one()) {
    convert(dtype_, result, dtype_, result, piece.count, after);
  }
}

}  // namespace sirtaki
