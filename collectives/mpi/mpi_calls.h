// The functions of an MPI library with the types that they have there.
#pragma once

#include "loader/symbol_reader.h"

namespace sirtaki {

// In every binary interface all kinds of handle have one representation, so one type stands for them all here.
template <typename Handle>
struct MpiCalls {
  using Comm = Handle;
  using Group = Handle;
  using Type = Handle;
  using Op = Handle;
  using Request = Handle;
  using Status = void;

  int (*Init_thread)(int*, char***, int, int*);
  int (*Initialized)(int*);
  int (*Finalized)(int*);
  int (*Query_thread)(int*);
  int (*Finalize)();
  int (*Abort)(Comm, int);
  int (*Error_string)(int, char*, int*);
  int (*Comm_rank)(Comm, int*);
  int (*Comm_size)(Comm, int*);
  int (*Comm_test_inter)(Comm, int*);
  int (*Comm_dup)(Comm, Comm*);
  int (*Comm_split)(Comm, int, int, Comm*);
  int (*Comm_group)(Comm, Group*);
  int (*Comm_create_group)(Comm, Group, int, Comm*);
  int (*Comm_free)(Comm*);
  int (*Comm_set_errhandler)(Comm, Handle);
  int (*Group_incl)(Group, int, const int*, Group*);
  int (*Group_free)(Group*);
  int (*Isend)(const void*, int, Type, int, int, Comm, Request*);
  int (*Irecv)(void*, int, Type, int, int, Comm, Request*);
  int (*Test)(Request*, int*, Status*);
  int (*Testany)(int, Request*, int*, int*, Status*);
  int (*Cancel)(Request*);
  int (*Request_free)(Request*);
  int (*Iallreduce)(const void*, void*, int, Type, Op, Comm, Request*);
  int (*Ibcast)(void*, int, Type, int, Comm, Request*);
  int (*Ireduce_scatter)(const void*, void*, const int*, Type, Op, Comm, Request*);
  int (*Iallgatherv)(const void*, int, Type, void*, const int*, const int*, Type, Comm, Request*);
  int (*Ialltoallv)(const void*, const int*, const int*, Type, void*, const int*, const int*, Type, Comm, Request*);
};

template <typename Handle>
MpiCalls<Handle> read_mpi_calls(SymbolReader& symbols) {
  MpiCalls<Handle> calls;
  symbols.read(calls.Init_thread, "MPI_Init_thread");
  symbols.read(calls.Initialized, "MPI_Initialized");
  symbols.read(calls.Finalized, "MPI_Finalized");
  symbols.read(calls.Query_thread, "MPI_Query_thread");
  symbols.read(calls.Finalize, "MPI_Finalize");
  symbols.read(calls.Abort, "MPI_Abort");
  symbols.read(calls.Error_string, "MPI_Error_string");
  symbols.read(calls.Comm_rank, "MPI_Comm_rank");
  symbols.read(calls.Comm_size, "MPI_Comm_size");
  symbols.read(calls.Comm_test_inter, "MPI_Comm_test_inter");
  symbols.read(calls.Comm_dup, "MPI_Comm_dup");
  symbols.read(calls.Comm_split, "MPI_Comm_split");
  symbols.read(calls.Comm_group, "MPI_Comm_group");
  symbols.read(calls.Comm_create_group, "MPI_Comm_create_group");
  symbols.read(calls.Comm_free, "MPI_Comm_free");
  symbols.read(calls.Comm_set_errhandler, "MPI_Comm_set_errhandler");
  symbols.read(calls.Group_incl, "MPI_Group_incl");
  symbols.read(calls.Group_free, "MPI_Group_free");
  symbols.read(calls.Isend, "MPI_Isend");
  symbols.read(calls.Irecv, "MPI_Irecv");
  symbols.read(calls.Test, "MPI_Test");
  symbols.read(calls.Testany, "MPI_Testany");
  symbols.read(calls.Cancel, "MPI_Cancel");
  symbols.read(calls.Request_free, "MPI_Request_free");
  symbols.read(calls.Iallreduce, "MPI_Iallreduce");
  symbols.read(calls.Ibcast, "MPI_Ibcast");
  symbols.read(calls.Ireduce_scatter, "MPI_Ireduce_scatter");
  symbols.read(calls.Iallgatherv, "MPI_Iallgatherv");
  symbols.read(calls.Ialltoallv, "MPI_Ialltoallv");
  return calls;
}

}  // namespace sirtaki
