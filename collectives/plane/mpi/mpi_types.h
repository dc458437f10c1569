// Translates dtypes, operations and counts into MPI's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi/mpi_abi.h"
#include "plane/data_plane.h"

namespace sirtaki {

// Throws Error(kPrecondition) for 16-bit floats: MPI cannot calculate with them, so they need another wire dtype.
MpiType mpi_type(DType dtype);

MpiOp mpi_op(const Reduction& reduction);

// MPI's counts are int. Throws Error(kPrecondition) if the count is larger.
int to_mpi_count(std::int64_t count);

// The MPI datatype to send elements of some size that are not reduced, and how many of its units make one element.
struct MpiUnit {
  MpiType type;
  std::int64_t per_element;
};
MpiUnit mpi_unit(std::size_t element_size);

// The count and the displacement of each rank's part, as MPI's ...v calls take them.
struct MpiLayout {
  MpiLayout() = default;
  MpiLayout(const std::vector<std::int64_t>& elements, std::int64_t per_element);

  std::vector<int> counts;
  std::vector<int> displacements;
};

}  // namespace sirtaki
