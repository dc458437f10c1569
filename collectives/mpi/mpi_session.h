// Initialises and finalises MPI for this process. MPI can be initialised only once, so the session outlives engines: it
// is made by the first init() and finalised when the process ends. Only the thread that calls init() uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "mpi/mpi_communicator.h"
#include "mpi/mpi_library.h"

namespace sirtaki {

class MpiSession {
 public:
  // Initialises MPI unless the program has done so. Throws Error kPrecondition if MPI has been finalised, or if it does
  // not let another thread than the one that initialised it call MPI.
  explicit MpiSession(std::shared_ptr<const MpiLibrary> library, MpiThreads wanted = MpiThreads::kMultiple);

  const MpiLibrary& library() const { return *library_; }
  bool initialized_here() const { return initialized_here_; }
  bool multiple_threads() const { return threads_ == MpiThreads::kMultiple; }

  // A communicator for an engine. All are collective over its ranks, block until those have called, and throw Error
  // kPrecondition once MPI has been finalised.
  MpiCommunicator world() const;
  // The value of a user's communicator handle (an int or an address). Throws kInvalidArgument for a null one.
  MpiCommunicator duplicate(std::uint64_t handle) const;
  // `ranks` of MPI_COMM_WORLD, including this process, in the order of their new ranks. Throws kInvalidArgument.
  MpiCommunicator of_ranks(std::span<const int> ranks) const;

  // Does nothing unless this object initialised MPI and MPI is not finalised yet. Collective over MPI_COMM_WORLD.
  void finalize();

 private:
  void require_alive() const;

  std::shared_ptr<const MpiLibrary> library_;
  bool initialized_here_ = false;
  MpiThreads threads_ = MpiThreads::kSingle;
};

}  // namespace sirtaki
