#include "plane/mpi/mpi_broadcast.h"

#include <cstring>

namespace sirtaki {
namespace {

PieceLimits limits(std::size_t size) {
  return {.piece = static_cast<std::int64_t>(kPieceBytes / size),
          .direct = static_cast<std::int64_t>(kDirectBytes / size)};
}

}  // namespace

MpiBroadcastPieces::MpiBroadcastPieces(const MpiCommunicator& communicator, int root, std::size_t element_size,
                                       std::span<const Segment> segments)
    : communicator_(communicator),
      root_(root),
      is_root_(communicator.rank() == root),
      size_(element_size),
      segments_(segments),
      walk_(segments, limits(element_size)) {}

void MpiBroadcastPieces::start(const Piece& piece, StagingSlot slot, MpiRequests& requests) const {
  if (piece.packed && is_root_) {
    walk_.for_each_part(piece,
                        [&](const Segment& from, std::int64_t offset, std::int64_t count, std::int64_t position) {
                          std::memcpy(at(slot.first, position, size_), at(from.in, offset, size_), bytes(count));
                        });
  }
  const auto count = static_cast<int>(bytes(piece.count));
  requests.push_back(
      communicator_.mpi().ibcast(buffer(piece, slot), count, MpiType::kUint8, root_, communicator_.comm()));
}

bool MpiBroadcastPieces::resume(const Piece& piece, StagingSlot slot, int, MpiRequests&) const {
  if (!piece.packed || is_root_) return false;
  walk_.for_each_part(piece, [&](const Segment& to, std::int64_t offset, std::int64_t count, std::int64_t position) {
    std::memcpy(at(to.out, offset, size_), at(slot.first, position, size_), bytes(count));
  });
  return false;
}

// MPI_Ibcast takes one buffer on the root and elsewhere. On the root MPI only reads it, so the const_cast is safe.
void* MpiBroadcastPieces::buffer(const Piece& piece, StagingSlot slot) const {
  if (piece.packed) return slot.first;
  const Segment& segment = segments_[piece.segment];
  return at(is_root_ ? const_cast<void*>(segment.in) : segment.out, piece.offset, size_);
}

}  // namespace sirtaki
