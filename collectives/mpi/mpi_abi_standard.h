// The standard interface of MPI 5 (libmpi_abi.so): handles are pointers, predefined ones small constants.
#pragma once

#include <cstdint>

#include "mpi/mpi_abi.h"

namespace sirtaki {

inline MpiAbi<void*> standard_mpi_abi() {
  const auto handle = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
  return {
      .name = "standard",
      .comm_world = handle(0x101),
      .comm_null = handle(0x100),
      .errors_return = handle(0x143),
      .types = {handle(0x240), handle(0x241), handle(0x248), handle(0x249), handle(0x250), handle(0x251), handle(0x258),
                handle(0x259), handle(0x210), handle(0x214)},
      .ops = {handle(0x21), handle(0x22), handle(0x23), handle(0x24)},
      .threads = {0, 1024, 2048, 4096},
      .in_place = handle(1),
      .status_ignore = nullptr,
  };
}

}  // namespace sirtaki
