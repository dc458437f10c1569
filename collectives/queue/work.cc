#include "queue/work.h"

#include <utility>

namespace sirtaki {

bool Work::wait() {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  while ((state & kDone) == 0) {
    if ((state & kAwaited) == 0 && !state_.compare_exchange_weak(state, state | kAwaited)) continue;
    if (futex_wait(state_, state | kAwaited) == WakeReason::kInterrupted) return done();
    state = state_.load(std::memory_order_acquire);
  }
  return true;
}

Result& Work::result() {
  note_known();
  if (error_) throw *error_;
  return result_;
}

// futex_wake uses the word after the work is done; the engine's shared pointer keeps the work alive until then. Of the
// threads that set kDone and kFollowed, the second runs the callback.
void Work::finish(Result result, const Error* error) {
  result_ = std::move(result);
  if (error != nullptr) error_ = *error;
  const std::uint32_t before = state_.exchange(kDone, std::memory_order_acq_rel);
  if ((before & kAwaited) != 0) futex_wake_all(state_);
  if ((before & kFollowed) != 0) std::exchange(callback_, nullptr)(*this);
}

void Work::then(std::function<void(Work&)> callback) {
  callback_ = std::move(callback);
  if ((state_.fetch_or(kFollowed, std::memory_order_acq_rel) & kDone) != 0) std::exchange(callback_, nullptr)(*this);
}

}  // namespace sirtaki
