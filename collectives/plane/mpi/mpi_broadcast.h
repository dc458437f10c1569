// Broadcast through MPI, piece by piece.
#pragma once

#include <span>

#include "mpi/mpi_communicator.h"
#include "plane/data_plane.h"
#include "plane/mpi/mpi_window.h"
#include "plane/pieces.h"

namespace sirtaki {

// The pieces of one batch, for MpiWindow.
class MpiBroadcastPieces {
 public:
  MpiBroadcastPieces(const MpiCommunicator& communicator, int root, std::size_t element_size,
                     std::span<const Segment> segments);

  bool next(Piece& piece) { return walk_.next(piece); }
  void start(const Piece& piece, StagingSlot slot, MpiRequests& requests) const;
  bool resume(const Piece& piece, StagingSlot slot, int stage, MpiRequests& requests) const;

 private:
  void* buffer(const Piece& piece, StagingSlot slot) const;
  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_; }

  const MpiCommunicator& communicator_;
  int root_;
  bool is_root_;
  std::size_t size_;
  std::span<const Segment> segments_;
  PieceWalk walk_;
};

}  // namespace sirtaki
