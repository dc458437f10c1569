// The one engine of this process, shared by all its frameworks, from init() to the end of the process. MPI outlives
// engines, since a process can initialise it only once. The core itself has no globals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sockets/mesh_options.h"

namespace sirtaki {

class FlightRecorder;
class StepWatch;

// Null before init and after shutdown. May be called in a forked child.
std::shared_ptr<Engine> find_engine();

// For constant facts such as rank and size. Before init throws Error(kInvalidArgument): ValueError, as in Horovod.
std::shared_ptr<Engine> engine_for_constants();
// For queries that lock the engine's mutex. Refused in a forked child, where that mutex may stay locked for ever.
std::shared_ptr<Engine> engine_for_query();
// For collectives. Before init throws Error(kPrecondition): in Python an internal error, as in Horovod.
std::shared_ptr<Engine> engine_for_collective();

// The records of all engines of this process. Null before init, and with SIRTAKI_RECORDER=0. Stays after shutdown.
FlightRecorder* find_recorder();
StepWatch* find_step_watch();

// Any thread of the program: all gradients of a training step are reduced.
void end_step(Engine& engine);

struct StartOptions {
  std::vector<std::string> mpi_libraries;  // paths; the first that loads is used
  std::uint64_t comm_handle = 0;           // the user's communicator; 0: none
  std::vector<int> comm_ranks;             // ranks of MPI_COMM_WORLD, in order; empty: all
  std::optional<MeshOptions> mesh;         // connects the ranks without MPI; then the members above are not used
  std::string program;                     // text that must be equal on all ranks
  int launcher = -1;                       // descriptor of the socket to the launcher; -1: none
};

// Blocks until all ranks have called it. Does nothing if there is an engine.
void start_engine(StartOptions options);
// Returns the failure cause if the job has failed. Does nothing without an engine.
std::optional<FailureCause> end_engine();
// Finalizes MPI at the end of the process, after end_engine(). All ranks must call it, so a failed job skips it.
// `supervised`: sirtakirun sets the job's exit code.
void finalize(bool supervised);
// The launcher's newest message for the program. It waits here until the program takes it.
void put_notice(std::string notice);
std::optional<std::string> take_notice();
// In a forked child.
void leave_connections_to_parent();
// Ends the processes of all ranks, then this one.
[[noreturn]] void abort_job(int exit_code);

// Whether the ranks of the present job use MPI. Call it after start_engine().
bool uses_mpi();
// Whether any thread may call MPI. Call it after start_engine().
bool mpi_threads_supported();
// About the MPI in use, or else the first of these libraries that loads.
std::map<std::string, std::string> mpi_info(const std::vector<std::string>& paths);

}  // namespace sirtaki
