// The interface that MPICH 3.1 and later share with Intel MPI, MVAPICH and Cray MPICH: handles are 32-bit integers.
#pragma once

#include <cstdint>

#include "mpi/mpi_abi.h"

namespace sirtaki {

inline MpiAbi<int> mpich_mpi_abi() {
  return {
      .name = "mpich",
      .comm_world = 0x44000000,
      .comm_null = 0x04000000,
      .errors_return = 0x54000001,
      .types = {0x4c000137, 0x4c00013b, 0x4c000238, 0x4c00023c, 0x4c000439, 0x4c00043d, 0x4c00083a, 0x4c00083e,
                0x4c00040a, 0x4c00080b},
      .ops = {0x58000003, 0x58000002, 0x58000001, 0x58000004},
      .threads = {0, 1, 2, 3},
      .in_place = reinterpret_cast<void*>(std::intptr_t{-1}),
      .status_ignore = reinterpret_cast<void*>(std::intptr_t{1}),
  };
}

}  // namespace sirtaki
