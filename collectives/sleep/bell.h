// What an engine sleeps on and others ring. It may lie in memory that the processes of a host share, so that a peer
// wakes exactly the process that has something to do.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "sleep/liveness_lock.h"

namespace sirtaki {

// All zero is the state of an engine that is awake. On its own pair of cache lines, since processors fetch lines in
// pairs.
struct alignas(128) Bell {
  std::atomic<std::uint32_t> state;   // SleepState: which thread sleeps, if any
  std::atomic<std::uint32_t> rings;   // the engine's thread sleeps on this word
  std::atomic<std::uint32_t> helper;  // a thread that helps (EngineLock) sleeps on this one
  // For CorePlacement: where the owner last began to wait, and the cores that it may use. On a line of their own, since
  // they hardly ever change.
  alignas(64) std::atomic<std::uint32_t> seat;
  cpu_set_t allowed;
  LivenessLock life;
};

enum class SleepState : std::uint32_t {
  kAwake = 0,         // a thread looks for work by itself
  kNapping = 1,       // the engine's thread, not for long
  kAsleep = 2,        // the engine's thread, until rung
  kHelperAsleep = 3,  // a helping thread; the engine's thread as well, but it is not wanted
};

// For peers: after they have stored what the bell's owner should see. Costs one look while the owner is awake.
void wake_owner(Bell& bell);

}  // namespace sirtaki
