// Allreduce of one piece by direct exchange. Each rank receives its share of the piece from all others, reduces it, and
// sends the result to all others. This sends as few bytes as possible, in two steps. Meant for few ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "mpi/mpi_communicator.h"
#include "plane/mpi/mpi_window.h"

namespace sirtaki {

// `in` may be `out`. `scratch` has room for as many elements as the piece and overlaps neither.
struct ExchangedPiece {
  const std::byte* in;
  std::byte* out;
  std::byte* scratch;
  std::int64_t count;
  int tag;  // no other piece that is under way has it
};

class MpiExchange {
 public:
  // The communicator has at least two ranks.
  MpiExchange(const MpiCommunicator& communicator, const Reduction& reduction);

  // First step: every rank sends each other rank the elements of that rank's share.
  void scatter(const ExchangedPiece& piece, MpiRequests& requests) const;
  // Second step, after all requests of the first: reduces the own share and sends the result to all.
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
