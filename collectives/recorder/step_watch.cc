#include "recorder/step_watch.h"

namespace sirtaki {

void StepWatch::restart() {
  const std::lock_guard lock(mutex_);
  next_ = recorder_.read(next_).next;
  times_ = {};
}

void StepWatch::take_in() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) update();
}

StepWatch::Times StepWatch::times() {
  const std::lock_guard lock(mutex_);
  update();
  return times_;
}

void StepWatch::update() {
  const FlightRecorder::Reading reading = recorder_.read(next_);
  next_ = reading.next;
  times_.lost += reading.lost;
  if (reading.lost > 0) times_.divider.forget();
  times_.divider.add(reading.records);
}

}  // namespace sirtaki
