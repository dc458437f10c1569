#include "plane/mpi/mpi_exchange.h"

#include <algorithm>
#include <span>
#include <vector>

#include "math/reduce_inputs.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kGrain = 16;  // elements; shares begin at cache lines if the piece does

}  // namespace

MpiExchange::MpiExchange(const MpiCommunicator& communicator, const Reduction& reduction)
    : communicator_(communicator),
      reduction_(reduction),
      item_(size_of(reduction.dtype)),
      rank_(communicator.rank()),
      size_(communicator.size()) {}

MpiExchange::Share MpiExchange::share(const ExchangedPiece& piece, int rank) const {
  const std::int64_t even = (piece.count + size_ - 1) / size_;
  const std::int64_t step = (even + kGrain - 1) / kGrain * kGrain;
  const std::int64_t begin = std::min(rank * step, piece.count);
  return {begin, std::min(step, piece.count - begin)};
}

void MpiExchange::scatter(const ExchangedPiece& piece, MpiRequests& requests) const {
  const MpiLibrary& mpi = communicator_.mpi();
  const std::size_t mine = static_cast<std::size_t>(share(piece, rank_).count) * item_;
  for (int distance = 1; distance < size_ && mine > 0; ++distance) {
    std::byte* block = piece.scratch + static_cast<std::size_t>(distance - 1) * mine;
    requests.push_back(mpi.irecv({block, mine}, peer(-distance), piece.tag, communicator_.comm()));
  }
  for (int distance = 1; distance < size_; ++distance) {
    const auto [begin, count] = share(piece, peer(distance));
    if (count == 0) continue;
    const std::span block(at(piece.in, begin, item_), static_cast<std::size_t>(count) * item_);
    requests.push_back(mpi.isend(block, peer(distance), piece.tag, communicator_.comm()));
  }
}

void MpiExchange::gather(const ExchangedPiece& piece, MpiRequests& requests) const {
  const MpiLibrary& mpi = communicator_.mpi();
  const auto [begin, count] = share(piece, rank_);
  const std::size_t mine = static_cast<std::size_t>(count) * item_;
  for (int distance = 1; distance < size_; ++distance) {
    const Share theirs = share(piece, peer(-distance));
    if (theirs.count == 0) continue;
    const std::span block(at(piece.out, theirs.begin, item_), static_cast<std::size_t>(theirs.count) * item_);
    requests.push_back(mpi.irecv(block, peer(-distance), piece.tag, communicator_.comm()));
  }
  if (count == 0) return;
  std::byte* result = at(piece.out, begin, item_);
  std::vector<const std::byte*> inputs = {at(piece.in, begin, item_)};
  for (int distance = 1; distance < size_; ++distance) {
    inputs.push_back(piece.scratch + static_cast<std::size_t>(distance - 1) * mine);
  }
  reduce_inputs(reduction_, inputs, result, count);
  for (int distance = 1; distance < size_; ++distance) {
    requests.push_back(mpi.isend({result, mine}, peer(distance), piece.tag, communicator_.comm()));
  }
}

}  // namespace sirtaki
