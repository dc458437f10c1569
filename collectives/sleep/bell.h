// The words in memory on which an engine sleeps, and which others change to wake it. The memory may be shared by the
// processes of a host. Then a peer can wake exactly the process that has work.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "sleep/liveness_lock.h"

namespace sirtaki {

// All zero: the engine is awake. Each bell has its own pair of cache lines, since processors fetch lines in pairs.
struct alignas(128) Bell {
  std::atomic<std::uint32_t> state;   // SleepState: which thread sleeps, if any
  std::atomic<std::uint32_t> rings;   // the engine's thread sleeps on this word
  std::atomic<std::uint32_t> helper;  // a thread of the program that helps (EngineLock) sleeps on this word
  // For CorePlacement: the core on which the owner last began to wait, and the cores that it may use. They rarely
  // change, so they have their own cache line.
  alignas(64) std::atomic<std::uint32_t> core;
  cpu_set_t allowed;
  LivenessLock life;
};

enum class SleepState : std::uint32_t {
  kAwake = 0,         // a thread polls for work
  kNapping = 1,       // the engine's thread sleeps for a short time
  kAsleep = 2,        // the engine's thread sleeps until it is woken
  kHelperAsleep = 3,  // a helping thread sleeps and is to be woken; the engine's thread sleeps, too
};

// For a peer, after it has stored data for the bell's owner. While the owner is awake, this costs one load.
void wake_owner(Bell& bell);

}  // namespace sirtaki
