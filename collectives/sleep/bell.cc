#include "sleep/bell.h"

#include "sleep/futex.h"

namespace sirtaki {

// The peer stores data, then checks whether the owner sleeps. The owner stores that it sleeps, then checks for data.
// Both have a full fence in between, so at least one of them sees the other's store.
void wake_owner(Bell& bell) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto rest = static_cast<SleepState>(bell.state.load(std::memory_order_relaxed));
  if (rest == SleepState::kAwake) return;
  std::atomic<std::uint32_t>& word = rest == SleepState::kHelperAsleep ? bell.helper : bell.rings;
  word.fetch_add(1);
  futex_wake_all(word, FutexScope::kHost);
}

}  // namespace sirtaki
