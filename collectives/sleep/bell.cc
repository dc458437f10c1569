#include "sleep/bell.h"

#include "sleep/futex.h"

namespace sirtaki {

// The peer stores, then looks whether the owner sleeps; the owner says that it sleeps, then looks for what was stored.
// With a full fence between the two on both sides, one of them sees the other.
void wake_owner(Bell& bell) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto rest = static_cast<SleepState>(bell.state.load(std::memory_order_relaxed));
  if (rest == SleepState::kAwake) return;
  std::atomic<std::uint32_t>& word = rest == SleepState::kHelperAsleep ? bell.helper : bell.rings;
  word.fetch_add(1);
  futex_wake_all(word, FutexScope::kHost);
}

}  // namespace sirtaki
