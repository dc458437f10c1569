// The one engine of this process, which all frameworks in it share, from init() to the end of the process. MPI outlives
// engines, since a process can initialise it only once. The core itself has no globals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sirtaki {

// Null before init and after shutdown. May be called in a forked child.
std::shared_ptr<Engine> find_engine();

// For facts that do not change. Throws Error(kInvalidArgument), for Python a ValueError as in Horovod, before init.
std::shared_ptr<Engine> engine_to_ask();
// For queries that lock the engine's mutex. Refused in a forked child, where that mutex may stay locked for ever.
std::shared_ptr<Engine> engine_to_look_into();
// For collectives. Throws Error(kPrecondition), for Python an internal error as in Horovod, before init.
std::shared_ptr<Engine> engine_to_use();

struct StartOptions {
  std::vector<std::string> mpi_libraries;  // paths; the first that can be loaded is taken
  std::uint64_t comm_handle = 0;           // of the user's communicator; 0: none
  std::vector<int> comm_ranks;             // of MPI_COMM_WORLD, in order; empty: all
  std::string program;                     // what must be the same on all ranks
  int launcher = -1;                       // the descriptor of the line to the launcher; -1: none
};

// Blocks until all ranks have called. Does nothing if there is an engine.
void start_engine(const StartOptions& options);
// Gives the cause if the job has failed. Does nothing without an engine.
std::optional<FailureCause> end_engine();
// At the end of the process, after end_engine(). All ranks must call it for MPI to end, so a failed job does without.
// `supervised`: somebody else sees to the job's exit code.
void finalize(bool supervised);
// Ends the processes of all ranks, then this one.
[[noreturn]] void abort_job(int exit_code);

// For start_engine() has been called: may any thread call MPI?
bool mpi_threads_supported();
// Of the MPI in use, or else of the first of these libraries that can be loaded.
std::map<std::string, std::string> mpi_info(const std::vector<std::string>& paths);

}  // namespace sirtaki
