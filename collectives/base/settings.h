// All settings that a user may change by environment variables. Only settings.cc reads the environment in the core.
// Each variable SIRTAKI_X may also be named HOROVOD_X; SIRTAKI_X takes precedence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time_limits.h"

namespace sirtaki {

struct Settings {
  // SIRTAKI_FUSION_THRESHOLD: the largest batch in bytes; 0 sends every tensor alone. Rank 0's value applies.
  std::int64_t fusion_threshold = std::int64_t{128} << 20;
  // SIRTAKI_CACHE_CAPACITY: cached requests; repeating one costs a few bytes. 0 switches the cache off.
  int cache_capacity = 4096;
  // SIRTAKI_LOCK_PLAN: 1: ranks that repeat a step lock it as a plan without votes; 0: they negotiate every step.
  bool lock_plan = true;
  // SIRTAKI_STALL_CHECK_TIME_SECONDS: a request whose ranks do not all come is reported after this time, and again
  // after each such time. 0, or SIRTAKI_STALL_CHECK_DISABLE=1, switches this off.
  double stall_warning_seconds = double{kStallWarning.count()};
  // SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS: after this time the job ends with an error on every rank. 0: never.
  double stall_abort_seconds = double{kStallAbort.count()};
  // SIRTAKI_START_TIMEOUT: seconds within which all ranks must call init().
  double start_timeout_seconds = double{kStartTimeout.count()};
  // SIRTAKI_GLOO_TIMEOUT_SECONDS, a name for Horovod's programs: without MPI, a connection whose other end does not
  // answer for this long is broken. 0: the system's own limit.
  int silence_seconds = static_cast<int>(kSilence.count());

  // SIRTAKI_RECORDER: 0 switches off the flight recorder of this rank.
  bool recorder = true;

  // SIRTAKI_CPU_OPERATIONS: "shm" lets ranks of one host exchange data through shared memory, "mpi" never does.
  bool shared_memory = true;

  // SIRTAKI_HOSTNAME: the name of this process's host; empty: the system's name. Ranks of one machine share memory if
  // their hosts have the same name. So containers that cannot share memory need different names.
  std::string host_name;

  // SIRTAKI_GPU_OPERATIONS: "nccl" or "mpi" for tensors on GPUs; empty: NCCL where all ranks can use it.
  std::string gpu_operations;

  // SIRTAKI_HIERARCHICAL_ALLREDUCE=1: NCCL reduces tensors on GPUs within each host, MPI between hosts.
  bool hierarchical_allreduce = false;

  // SIRTAKI_THREAD_AFFINITY: cores for the engine's thread, one for each local rank, as in "0,4"; empty: the
  // process's cores.
  std::vector<int> thread_affinity;
  // SIRTAKI_MPI_THREADS_DISABLE=1: initialises MPI for one thread at a time (MPI_THREAD_SERIALIZED), not for several.
  bool mpi_threads = true;
  // SIRTAKI_LOG_LEVEL: trace, debug, info, warning, error or fatal. The core itself writes warnings only.
  bool log_warnings = true;
  // SIRTAKI_LOG_HIDE_TIME=1: lines of the log do not begin with the time.
  bool log_time = true;

  // Throws Error(kInvalidArgument) naming the variable and its value.
  static Settings from_environment();

  // The settings that must be equal on all ranks, as text for messages.
  std::string agreed() const;
};

}  // namespace sirtaki
