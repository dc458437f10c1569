// Allreduce over MPI, piece by piece.
#pragma once

#include "plane/data_plane.h"
#include "plane/mpi_pieces.h"
#include "transport/mpi_communicator.h"

namespace sirtaki {

// Starts and finishes the pieces of one batch. Casts and scales in the pass that packs or unpacks.
class MpiAllreducePieces {
 public:
  MpiAllreducePieces(const MpiCommunicator& communicator, const Reduction& reduction,
                     std::span<const Segment> segments);

  bool next(Piece& piece) { return walk_.next(piece); }
  // In place if the slot's two sides are one, else not, on all ranks alike.
  MpiRequest start(const Piece& piece, Slot slot) const;
  void finish(const Piece& piece, Slot slot) const;

 private:
  const std::byte* prepare(const std::byte* in, std::byte* copy, const std::byte* out, std::int64_t count) const;
  void pack(const Piece& piece, std::byte* slot) const;
  void unpack(const Piece& piece, const std::byte* slot) const;

  const MpiCommunicator& communicator_;
  Reduction reduction_;
  DType wire_;
  MpiType type_;
  MpiOp op_;
  std::size_t size_;       // of an element
  std::size_t wire_size_;  // of an element on its way
  std::span<const Segment> segments_;
  PieceWalk walk_;
};

}  // namespace sirtaki
