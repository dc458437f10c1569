// Allreduce through MPI, piece by piece.
#pragma once

#include <span>

#include "mpi/mpi_communicator.h"
#include "plane/data_plane.h"
#include "plane/mpi/mpi_exchange.h"
#include "plane/mpi/mpi_window.h"
#include "plane/pieces.h"
#include "plane/reduction_steps.h"

namespace sirtaki {

// The pieces of one batch, for MpiWindow. The pass that packs or unpacks a piece also casts and scales it.
class MpiAllreducePieces {
 public:
  MpiAllreducePieces(const MpiCommunicator& communicator, const Reduction& reduction,
                     std::span<const Segment> segments);

  bool next(Piece& piece) { return walk_.next(piece); }
  void start(const Piece& piece, StagingSlot slot, MpiRequests& requests) const;
  bool resume(const Piece& piece, StagingSlot slot, int stage, MpiRequests& requests) const;

 private:
  // MPI_Iallreduce in place, MPI_Iallreduce from one buffer to another, or MpiExchange. The same on all ranks.
  enum class Way { kInPlace, kApart, kExchange };
  // Addresses of the elements to reduce, and of the results.
  struct Place {
    const std::byte* in;
    std::byte* out;
  };

  Way way(const Piece& piece) const;
  const ReductionSteps& steps(const Piece& piece) const;
  Place place(const Piece& piece, StagingSlot slot) const;
  ExchangedPiece exchanged(const Piece& piece, StagingSlot slot) const;
  void prepare(const Piece& piece, StagingSlot slot) const;
  void finish(const Piece& piece, StagingSlot slot) const;

  const MpiCommunicator& communicator_;
  DType dtype_;
  ReductionSteps by_mpi_;
  ReductionSteps by_exchange_;
  DType wire_;
  MpiType type_;
  MpiOp op_;
  std::size_t item_;       // bytes of an element
  std::size_t wire_item_;  // bytes of an element in the wire dtype
  int size_;
  Way own_way_;  // the better of MPI_Iallreduce's two
  MpiExchange exchange_;
  std::span<const Segment> segments_;
  PieceWalk walk_;
};

}  // namespace sirtaki
