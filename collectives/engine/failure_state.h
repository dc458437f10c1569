// Why the job cannot continue: first this rank's own cause, then the cause on which all ranks have agreed. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "agreement/failure_cause.h"

namespace sirtaki {

class FailureState {
 public:
  // `on_change` gets each new cause before any thread can read it here. It is called under this object's mutex, so it
  // must not call this object.
  explicit FailureState(std::function<void(const FailureCause&)> on_change) : on_change_(std::move(on_change)) {}

  // Keeps only the first cause.
  void record(const FailureCause& cause);
  // Replaces this rank's own cause by the cause of all ranks.
  void adopt(const JobFailure& failure);

  std::optional<FailureCause> cause() const;
  bool agreed() const;
  // After record() or adopt(): throws JobFailure.
  [[noreturn]] void raise() const;

  // The other ranks have been notified, as far as they can be reached, or no thread is left to notify them.
  void set_notified();
  // Call after record() or adopt(). Waits for set_notified(), at most `limit`, and returns the cause.
  FailureCause wait_until_notified(std::chrono::nanoseconds limit);

 private:
  std::function<void(const FailureCause&)> on_change_;
  mutable std::mutex mutex_;
  std::optional<FailureCause> cause_;
  bool agreed_ = false;
  bool notified_ = false;
  std::condition_variable notified_changed_;
};

}  // namespace sirtaki
