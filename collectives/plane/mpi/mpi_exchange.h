// Allreduce of one piece by direct exchange: each rank gets its share of the piece from all others, reduces it, and
// gives the result to all. Moves as few bytes as possible, in two steps; for few ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "mpi/mpi_communicator.h"
#include "plane/mpi/mpi_window.h"

namespace sirtaki {

// `in` may be `out`. The scratch has room for as much as the piece, apart from both.
struct ExchangedPiece {
  const std::byte* in;
  std::byte* out;
  std::byte* scratch;
  std::int64_t count;
  int tag;  // of its own while it is under way
};

class MpiExchange {
 public:
  // The communicator has at least two ranks.
  MpiExchange(const MpiCommunicator& communicator, const Reduction& reduction);

  // First step.
  void scatter(const ExchangedPiece& piece, MpiRequests& requests) const;
  // Second step, once all requests of the first are complete.
  void gather(const ExchangedPiece& piece, MpiRequests& requests) const;

 private:
  struct Share {
    std::int64_t begin;
    std::int64_t count;
  };
  Share share(const ExchangedPiece& piece, int rank) const;
  int peer(int distance) const { return (rank_ + distance + size_) % size_; }

  const MpiCommunicator& communicator_;
  Reduction reduction_;
  std::size_t item_;  // bytes
  int rank_;
  int size_;
};

}  // namespace sirtaki
