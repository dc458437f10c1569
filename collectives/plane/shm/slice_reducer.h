// The part of a two-level allreduce within a host: one rank's work on the pieces of a batch in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plane/pieces.h"
#include "plane/reduction_steps.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {

// Element numbers count from the beginning of the piece.
class SliceReducer {
 public:
  // Each of the first `leaders` ranks of the channel leads one slice.
  SliceReducer(ShmChannel& channel, const Reduction& reduction, const PieceWalk& walk, int leaders);

  DType wire() const { return steps_.wire; }
  // Elements in this rank's slice of the piece; 0 on a rank that leads no slice.
  std::int64_t slice_count(const Piece& piece) const;

  // Copies the piece into this rank's slot, except the slice that this rank leads.
  void copy_in(const Piece& piece, std::uint64_t turn) const;
  // Writes the sum of this rank's slice over the host into `sum`, in the wire dtype: steps_of_library().
  void reduce(const Piece& piece, std::uint64_t turn, std::byte* sum);
  // Writes the result of this rank's slice, given in the wire dtype, into this rank's memory and the other ranks'
  // slots. This may overwrite the inputs there: only the leader reads them, and it has reduced them.
  void spread(const Piece& piece, std::uint64_t turn, const std::byte* result) const;
  // Copies the results of all slices but the own one out of this rank's slot.
  void copy_out(const Piece& piece, std::uint64_t turn) const;

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };

  Range slice(const Piece& piece) const;
  template <typename Visit>
  void for_each_run(const Piece& piece, Range range, Visit visit) const;
  template <typename Visit>
  void for_each_run_of_others(const Piece& piece, Visit visit) const;
  std::byte* slot(int rank, std::uint64_t turn, std::int64_t element) const;

  ShmChannel& channel_;
  const PieceWalk& walk_;
  int leaders_;
  ReductionSteps steps_;
  Reduction on_host_;
  std::size_t item_;                      // bytes of an element
  std::size_t wire_item_;                 // bytes of an element in the wire dtype
  std::vector<const std::byte*> inputs_;  // one for each rank, of the present run
};

}  // namespace sirtaki
