// An MPI library, loaded at run time. One build of Sirtaki works with every implementation and needs no MPI to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "mpi/mpi_abi.h"

namespace sirtaki {

// The bits of one of the library's handles, which are ints or pointers.
enum class MpiComm : std::uint64_t {};
enum class MpiRequest : std::uint64_t {};

// The calls that Sirtaki needs. A call that fails throws Error kAborted with its name and MPI's own text. Communicators
// that are made here return errors; those of the user keep their handler. Thread-safe as far as MPI itself is.
class MpiLibrary {
 public:
  virtual ~MpiLibrary() = default;

  virtual std::string_view abi() const = 0;        // "standard", "mpich" or "openmpi"
  virtual const std::string& path() const = 0;     // of the file, as the loader found it
  virtual const std::string& version() const = 0;  // MPI_Get_library_version's text

  // Does it accept pointers to GPU memory? The library itself answers, after MPI_Init.
  virtual bool takes_gpu_memory() const = 0;

  virtual bool is_initialized() const = 0;
  virtual bool is_finalized() const = 0;
  virtual MpiThreads init(MpiThreads wanted) const = 0;  // what is provided
  virtual MpiThreads threads() const = 0;
  virtual void finalize() const = 0;
  virtual void abort(int exit_code) const = 0;  // the whole MPI_COMM_WORLD

  virtual MpiComm comm_world() const = 0;
  virtual bool is_null(MpiComm comm) const = 0;
  virtual bool is_intercommunicator(MpiComm comm) const = 0;
  virtual int rank(MpiComm comm) const = 0;
  virtual int size(MpiComm comm) const = 0;
  virtual MpiComm duplicate(MpiComm comm) const = 0;
  // Collective over the listed ranks of comm alone, which become ranks 0, 1, ... in the order given.
  virtual MpiComm create_group(MpiComm comm, std::span<const int> ranks, int tag) const = 0;
  // Collective over comm; the ranks of each colour form a communicator, null where the colour is negative.
  virtual MpiComm split(MpiComm comm, int color, int key) const = 0;
  virtual void free(MpiComm comm) const = 0;

  virtual MpiRequest isend(std::span<const std::byte> bytes, int to, int tag, MpiComm comm) const = 0;
  virtual MpiRequest irecv(std::span<std::byte> bytes, int from, int tag, MpiComm comm) const = 0;
  // True once complete; the request is then void.
  virtual bool test(MpiRequest& request) const = 0;
  // The index of a request that has completed, or -1. All must be active.
  virtual int test_any(std::span<MpiRequest> requests) const = 0;
  virtual void cancel(MpiRequest request) const = 0;
  virtual void free(MpiRequest request) const = 0;

  // Where in == out, the operation is in place, which must then be so on all ranks. Counts and displacements are
  // elements and stay valid until completion.
  virtual MpiRequest iallreduce(const void* in, void* out, int count, MpiType type, MpiOp op, MpiComm comm) const = 0;
  virtual MpiRequest ibcast(void* buffer, int count, MpiType type, int root, MpiComm comm) const = 0;
  virtual MpiRequest ireduce_scatter(const void* in, void* out, const int* counts, MpiType type, MpiOp op,
                                     MpiComm comm) const = 0;
  virtual MpiRequest iallgatherv(const void* in, int count, void* out, const int* counts, const int* displacements,
                                 MpiType type, MpiComm comm) const = 0;
  virtual MpiRequest ialltoallv(const void* in, const int* send_counts, const int* send_displacements, void* out,
                                const int* receive_counts, const int* receive_displacements, MpiType type,
                                MpiComm comm) const = 0;
};

// Returns the MPI that this process has loaded already (perhaps by mpi4py), else loads the first path that works. Two
// MPIs in one process would corrupt each other. Does not initialise MPI. Throws Error kPrecondition with the loader's
// own message for each path.
std::shared_ptr<const MpiLibrary> load_mpi(std::span<const std::string> paths);

// "path", "version" and "abi", for people.
std::map<std::string, std::string> describe(const MpiLibrary& library);

}  // namespace sirtaki
