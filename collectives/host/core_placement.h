// The cores on which the ranks of a host work. A rank that spins may be on the same core as the rank that it waits for.
// Then the other rank cannot run for a whole time slice. Where few cores share a cache, a kernel may leave both ranks
// there although other cores are idle.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "host/host_bells.h"

namespace sirtaki {

class CorePlacement {
 public:
  // `rank`: this rank in the job.
  CorePlacement(std::shared_ptr<const HostBells> bells, int rank) : bells_(std::move(bells)), rank_(rank) {}

  // Publishes which cores this process may use. Called once.
  void publish_allowed();
  // After all ranks have called publish_allowed(): do the ranks together have `each` cores for every rank?
  bool has_cores_for_all(int each = 1) const;

  // For the thread that does this rank's work and waits. It publishes its core, and returns whether the core that
  // `peer`, or any other rank, has published is the same.
  bool shared_with(int peer) const { return is_on(peer, publish_core()); }
  bool shared() const;

  // Is another rank awake on this thread's core? Then moves this thread to an allowed core that no rank has published,
  // if there is one. True if it moved. A move costs some tens of microseconds, so moves are rare. The thread usually
  // stays on the new core after later wake-ups.
  bool move_to_free_core();

 private:
  using Clock = std::chrono::steady_clock;

  std::uint32_t publish_core() const;
  bool is_on(int peer, std::uint32_t core) const;
  bool is_busy_on(int peer, std::uint32_t core) const;

  std::shared_ptr<const HostBells> bells_;
  int rank_;
  Clock::time_point next_move_;
};

}  // namespace sirtaki
