// The local half of a two-level allreduce: one rank's work on the pieces of a batch in the memory of its host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plane/pieces.h"
#include "plane/reduction_steps.h"
#include "plane/shm/shm_channel.h"

namespace sirtaki {

// Elements are numbered from the beginning of the piece.
class SliceReducer {
 public:
  // The first `leaders` ranks of the channel lead a slice each.
  SliceReducer(ShmChannel& channel, const Reduction& reduction, const PieceWalk& walk, int leaders);

  DType wire() const { return steps_.wire; }
  // Of the piece, in elements; 0 on ranks that lead none.
  std::int64_t slice_count(const Piece& piece) const;

  // Into this rank's slot, all but the slice that it leads.
  void copy_in(const Piece& piece, std::uint64_t turn) const;
  // The slice's sum over the host, as it travels: steps_of_library().
  void reduce(const Piece& piece, std::uint64_t turn, std::byte* sum);
  // The slice's result, which has come as it travels, into this rank's memory and the slots of the others. Nobody
  // else reads a slice after its leader has reduced it.
  void spread(const Piece& piece, std::uint64_t turn, const std::byte* result) const;
  // All but the own slice, from this rank's slot.
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
  std::size_t wire_item_;                 // and on its way
  std::vector<const std::byte*> inputs_;  // of the ranks, for one run
};

}  // namespace sirtaki
