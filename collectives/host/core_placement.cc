#include "host/core_placement.h"

#include <sched.h>

namespace sirtaki {
namespace {

constexpr std::chrono::milliseconds kBetweenMoves{10};

cpu_set_t allowed_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);  // stays empty if the host has more cores than a cpu_set_t can hold
  static_cast<void>(sched_getaffinity(0, sizeof(cores), &cores));
  return cores;
}

}  // namespace

void CorePlacement::publish_allowed() { bells_->of(rank_).allowed = allowed_cores(); }

bool CorePlacement::has_cores_for_all(int each) const {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < bells_->size(); ++rank) CPU_OR(&all, &all, &bells_->of(rank).allowed);
  return CPU_COUNT(&all) >= each * bells_->size();
}

bool CorePlacement::shared() const {
  const std::uint32_t core = publish_core();
  for (int peer = 0; peer < bells_->size(); ++peer) {
    if (is_on(peer, core)) return true;
  }
  return false;
}

bool CorePlacement::move_to_free_core() {
  const auto now = Clock::now();
  if (now < next_move_) return false;
  const std::uint32_t core = publish_core();
  bool disturbs = false;
  const cpu_set_t before = allowed_cores();
  cpu_set_t others = before;
  for (int peer = 0; peer < bells_->size(); ++peer) {
    disturbs |= is_busy_on(peer, core);
    const std::uint32_t taken = bells_->of(peer).core.load(std::memory_order_relaxed);
    if (taken > 0) CPU_CLR(taken - 1, &others);
  }
  if (!disturbs || CPU_COUNT(&others) == 0) return false;
  next_move_ = now + kBetweenMoves;
  if (sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  publish_core();
  return sched_setaffinity(0, sizeof(before), &before) == 0;
}

// Publishes this thread's core and returns its number, counted from 1.
std::uint32_t CorePlacement::publish_core() const {
  const auto core = static_cast<std::uint32_t>(sched_getcpu() + 1);
  std::atomic<std::uint32_t>& own = bells_->of(rank_).core;
  if (own.load(std::memory_order_relaxed) != core) own.store(core, std::memory_order_relaxed);
  return core;
}

bool CorePlacement::is_on(int peer, std::uint32_t core) const {
  return peer != rank_ && bells_->of(peer).core.load(std::memory_order_relaxed) == core;
}

// A rank that sleeps does not count: its program is busy elsewhere, and it may wake up on another core.
bool CorePlacement::is_busy_on(int peer, std::uint32_t core) const {
  const auto rest = static_cast<SleepState>(bells_->of(peer).state.load(std::memory_order_relaxed));
  return rest != SleepState::kAsleep && is_on(peer, core);
}

}  // namespace sirtaki
