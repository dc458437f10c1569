// Keeps a few pieces of a batch under way at the same time, so that one is copied while MPI transfers the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/task.h"
#include "mpi/mpi_library.h"
#include "plane/pieces.h"

namespace sirtaki {

// Pieces that fit a core's cache reduce twice as fast as a large tensor in one call.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
// Smaller segments are packed together.
inline constexpr std::size_t kDirectBytes = std::size_t{128} << 10;

inline constexpr std::size_t kWindowPieces = 3;
inline constexpr std::size_t kStagingBytes = kWindowPieces * 2 * kPieceBytes;

// Memory for one piece under way: two buffers of kPieceBytes.
struct StagingSlot {
  int number = 0;  // each piece under way has another number, the same on all ranks
  std::byte* first = nullptr;
  std::byte* second = nullptr;
};

using MpiRequests = std::vector<MpiRequest>;

// Ready when the whole batch is done. All ranks start the pieces in the same order. `Pieces` has
//   bool next(Piece&)                                       gives the next piece; false at the end
//   void start(const Piece&, StagingSlot, MpiRequests&)       starts the piece and adds its requests
//   bool resume(const Piece&, StagingSlot, int stage, MpiRequests&)
//     called with stage 0, 1, ... each time all requests are complete. Either adds more requests and returns true, or
//     finishes the piece and returns false
template <typename Pieces>
class MpiWindow final : public Pending {
 public:
  // `in_flight` counts the pieces that MPI works on. So the owner can see that this object was destroyed too early.
  MpiWindow(const MpiLibrary& mpi, Pieces pieces, std::byte* staging, int& in_flight)
      : mpi_(mpi), pieces_(std::move(pieces)), staging_(staging), in_flight_(in_flight) {}

  bool ready() override {
    for (;;) {
      fill();
      if (finished_ == started_) return true;
      for (std::size_t i = finished_; i < started_; ++i) progress(i);
      if (!flight(finished_).done) return false;
      while (finished_ < started_ && flight(finished_).done) ++finished_;
    }
  }

 private:
  struct Flight {
    Piece piece;
    MpiRequests requests;
    std::size_t completed = 0;  // of `requests`
    int stage = 0;
    bool done = false;
  };

  Flight& flight(std::size_t index) { return flights_[index % kWindowPieces]; }

  StagingSlot slot(std::size_t index) const {
    const std::size_t number = index % kWindowPieces;
    std::byte* first = staging_ + number * 2 * kPieceBytes;
    return {static_cast<int>(number), first, first + kPieceBytes};
  }

  void fill() {
    while (!ended_ && started_ - finished_ < kWindowPieces) {
      Flight& next = flight(started_);
      ended_ = !pieces_.next(next.piece);
      if (ended_) return;
      next.requests.clear();
      next.completed = 0;
      next.stage = 0;
      next.done = false;
      ++in_flight_;
      pieces_.start(next.piece, slot(started_), next.requests);
      ++started_;
    }
  }

  void progress(std::size_t index) {
    Flight& each = flight(index);
    while (!each.done) {
      for (; each.completed < each.requests.size(); ++each.completed) {
        if (!mpi_.test(each.requests[each.completed])) return;
        note_progress();
      }
      each.requests.clear();
      each.completed = 0;
      each.done = !pieces_.resume(each.piece, slot(index), each.stage++, each.requests);
      if (each.done) --in_flight_;
    }
  }

  const MpiLibrary& mpi_;
  Pieces pieces_;
  std::byte* staging_;
  int& in_flight_;
  std::array<Flight, kWindowPieces> flights_;
  std::size_t started_ = 0;
  std::size_t finished_ = 0;
  bool ended_ = false;
};

}  // namespace sirtaki
