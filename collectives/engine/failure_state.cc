#include "engine/failure_state.h"

namespace sirtaki {

void FailureState::record(const FailureCause& cause) {
  const std::lock_guard lock(mutex_);
  if (cause_) return;
  on_change_(cause);
  cause_ = cause;
}

void FailureState::adopt(const JobFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (agreed_ || (cause_ && !failure.agreed())) return;
  on_change_(failure.cause());
  cause_ = failure.cause();
  agreed_ = failure.agreed();
}

std::optional<FailureCause> FailureState::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

bool FailureState::agreed() const {
  const std::lock_guard lock(mutex_);
  return agreed_;
}

void FailureState::raise() const {
  const std::lock_guard lock(mutex_);
  throw JobFailure(*cause_, agreed_);
}

void FailureState::set_notified() {
  {
    const std::lock_guard lock(mutex_);
    notified_ = true;
  }
  notified_changed_.notify_all();
}

FailureCause FailureState::wait_until_notified(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  notified_changed_.wait_for(lock, limit, [this] { return notified_; });
  return *cause_;
}

}  // namespace sirtaki
