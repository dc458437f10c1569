// Our dtypes, operations and counts in MPI's terms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi/mpi_abi.h"
#include "plane/data_plane.h"

namespace sirtaki {

// Of a dtype that MPI can calculate with: not of 16-bit floats, which travel as others.
MpiType mpi_type(DType dtype);

MpiOp mpi_op(const Reduction& reduction);

// MPI counts in int. Throws Error kPrecondition if the count is larger.
int to_mpi_count(std::int64_t count);

// A datatype in which elements of some size travel when nothing is calculated, and how many make up one element.
struct MpiUnit {
  MpiType type;
  std::int64_t per_element;
};
MpiUnit mpi_unit(std::size_t element_size);

// The counts of a call for each rank, and where they begin.
struct MpiLayout {
  MpiLayout() = default;
  MpiLayout(const std::vector<std::int64_t>& elements, std::int64_t per_element);

  std::vector<int> counts;
  std::vector<int> displacements;
};

}  // namespace sirtaki
