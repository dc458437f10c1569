// On which cores the ranks of a host work. A rank that spins on the core of the rank that it waits for keeps that rank
// from running, for as long as a time slice. A kernel may leave both there although other cores are idle, where few
// cores share a cache.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "host/host_bells.h"

namespace sirtaki {

class CorePlacement {
 public:
  // Of that rank of the job.
  CorePlacement(std::shared_ptr<const HostBells> bells, int rank) : bells_(std::move(bells)), rank_(rank) {}

  // Publishes which cores this process may use; once.
  void publish();
  // After all have: do the ranks have together so many cores for each of them?
  bool suffice(int each = 1) const;

  // For the thread that does this rank's work and waits; it says on which core it is. Is `peer`, or any other rank, to
  // work on the same core as far as it has said?
  bool shared_with(int peer) const { return rank_is_at(peer, take()); }
  bool shared() const;

  // If another rank is in the middle of something on this thread's core, goes to a core on which none is, if there is
  // one that it may use. True if it went. Moving costs some tens of microseconds, so it is done now and then only;
  // later wake-ups leave a thread where it was.
  bool move_apart();

 private:
  using Clock = std::chrono::steady_clock;

  std::uint32_t take() const;
  bool rank_is_at(int peer, std::uint32_t seat) const;
  bool is_busy_here(int peer, std::uint32_t seat) const;

  std::shared_ptr<const HostBells> bells_;
  int rank_;
  Clock::time_point next_move_;
};

}  // namespace sirtaki
