// All settings that a user may make by environment variables. The only file of the core that reads the environment.
// Each SIRTAKI_X may also be spelled HOROVOD_X; SIRTAKI_X takes precedence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sirtaki {

struct Settings {
  // SIRTAKI_FUSION_THRESHOLD: bytes that one batch may hold; 0 sends every tensor by itself. Rank 0's value counts.
  std::int64_t fusion_threshold = std::int64_t{128} << 20;
  // SIRTAKI_CACHE_CAPACITY: requests that are remembered so that repeating them costs a few bytes; 0 turns it off.
  int cache_capacity = 4096;
  // SIRTAKI_LOCK_PLAN: 1 lets ranks that repeat a step lock it as a plan without votes; 0 negotiates every step.
  bool lock_plan = true;
  // SIRTAKI_STALL_CHECK_TIME_SECONDS: a request that lacks ranks for so long is reported, and again each such time.
  // 0, or SIRTAKI_STALL_CHECK_DISABLE=1, turns it off.
  double stall_warning_seconds = 60;
  // SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS: after so long the job ends with an error on every rank. 0 turns it off.
  double stall_abort_seconds = 600;
  // SIRTAKI_START_TIMEOUT: seconds in which all ranks must have arrived in init.
  double start_timeout_seconds = 120;

  // SIRTAKI_RECORDER: 0 switches off the flight recorder of this rank.
  bool recorder = true;

  // SIRTAKI_CPU_OPERATIONS: "shm" lets ranks of one host exchange data through shared memory, "mpi" never does.
  bool shared_memory = true;

  // SIRTAKI_HOSTNAME: what this process's host is called. Ranks share memory if they are on one machine and their hosts
  // are called the same; so containers that cannot share it need names of their own. None: what the system says.
  std::string host_name;

  // SIRTAKI_GPU_OPERATIONS: "nccl" or "mpi" for tensors on GPUs; empty: NCCL where all ranks can use it.
  std::string gpu_operations;

  // SIRTAKI_HIERARCHICAL_ALLREDUCE=1: tensors on GPUs are added up by NCCL in each host, and by MPI between hosts.
  bool hierarchical_allreduce = false;

  // SIRTAKI_THREAD_AFFINITY: cores for the engine's thread, one for each local rank, "0,4"; none: as the process has
  // it.
  std::vector<int> thread_affinity;
  // SIRTAKI_MPI_THREADS_DISABLE=1: initialises MPI for one thread at a time rather than for any number at once.
  bool mpi_threads = true;
  // SIRTAKI_LOG_LEVEL: trace, debug, info, warning, error or fatal. The core itself writes warnings only.
  bool says_warnings = true;
  // SIRTAKI_LOG_HIDE_TIME=1: without the time in front.
  bool says_time = true;

  // Throws Error(kInvalidArgument) naming the variable and its value.
  static Settings from_environment();

  // The settings that must be equal on all ranks, as text for messages.
  std::string agreed() const;
};

}  // namespace sirtaki
