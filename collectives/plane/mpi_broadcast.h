// Broadcast over MPI, piece by piece.
#pragma once

#include "plane/data_plane.h"
#include "plane/mpi_pieces.h"
#include "transport/mpi_communicator.h"

namespace sirtaki {

// Starts and finishes the pieces of one batch.
class MpiBroadcastPieces {
 public:
  MpiBroadcastPieces(const MpiCommunicator& communicator, int root, std::size_t element_size,
                     std::span<const Segment> segments);

  bool next(Piece& piece) { return walk_.next(piece); }
  MpiRequest start(const Piece& piece, Slot slot) const;
  void finish(const Piece& piece, Slot slot) const;

 private:
  void* buffer(const Piece& piece, Slot slot) const;
  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_; }

  const MpiCommunicator& communicator_;
  int root_;
  bool is_root_;
  std::size_t size_;
  std::span<const Segment> segments_;
  PieceWalk walk_;
};

}  // namespace sirtaki
