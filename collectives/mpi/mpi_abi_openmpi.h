// Open MPI's ABI: a handle is the address of an object, and the library exports the predefined objects as symbols.
#pragma once

#include "mpi/mpi_abi.h"

namespace sirtaki {

// address(name) returns the address of an exported symbol, and records missing names.
template <typename Address>
MpiAbi<void*> open_mpi_abi(Address address) {
  return {
      .name = "openmpi",
      .comm_world = address("ompi_mpi_comm_world"),
      .comm_null = address("ompi_mpi_comm_null"),
      .errors_return = address("ompi_mpi_errors_return"),
      .types = {address("ompi_mpi_int8_t"), address("ompi_mpi_uint8_t"), address("ompi_mpi_int16_t"),
                address("ompi_mpi_uint16_t"), address("ompi_mpi_int32_t"), address("ompi_mpi_uint32_t"),
                address("ompi_mpi_int64_t"), address("ompi_mpi_uint64_t"), address("ompi_mpi_float"),
                address("ompi_mpi_double")},
      .ops = {address("ompi_mpi_op_sum"), address("ompi_mpi_op_min"), address("ompi_mpi_op_max"),
              address("ompi_mpi_op_prod")},
      .threads = {0, 1, 2, 3},
      .in_place = reinterpret_cast<void*>(1),
      .status_ignore = nullptr,
  };
}

}  // namespace sirtaki
