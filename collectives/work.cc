#include "work.h"

namespace sirtaki {

bool Work::wait() {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  while (state != kDone) {
    if (state == kPending && !state_.compare_exchange_weak(state, kAwaited)) continue;
    if (futex_wait(state_, kAwaited) == Wake::kInterrupted) return done();
    state = state_.load(std::memory_order_acquire);
  }
  return true;
}

Result& Work::result() {
  if (error_) throw *error_;
  return result_;
}

void Work::finish(Result result) {
  result_ = std::move(result);
  publish();
}

void Work::fail(const Error& error) {
  error_ = error;
  publish();
}

// The waker touches the word after it is done; the engine's shared pointer keeps it alive until then.
void Work::publish() {
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) futex_wake_all(state_);
}

}  // namespace sirtaki
