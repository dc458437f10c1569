// The promise of a submission's result. The engine sets the result once; any number of threads may wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/types.h"
#include "device/device.h"
#include "memory/host_buffer.h"
#include "sleep/futex.h"

namespace sirtaki {

// The outcome of a collective, except for results in the caller's memory.
struct Result {
  std::vector<HostBuffer> buffers;  // one for each tensor; empty where the caller gave the memory
  std::vector<Shape> shapes;        // of each output
  std::vector<std::int64_t> received_splits;
  std::string misfit;  // why the caller's memory was not used: its size is not that of the result
  std::int64_t value = 0;
  EventPtr output_ready;  // GPU: the event after which the results are in memory; the work is done before that
};

class Work {
 public:
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }

  // It failed, and its memory may still be written.
  bool abandoned() const { return done() && error_ && error_->kind() == ErrorKind::kAborted; }

  // Sleeps until done. False if a signal interrupted the wait: the caller handles the signal and waits again.
  bool wait();

  // After done(): returns the result, or throws the error. Calls note_known().
  Result& result();

  // The program knows that this work is done, or has dropped it.
  void note_known() { known_.store(true, std::memory_order_relaxed); }
  bool known() const { return known_.load(std::memory_order_relaxed); }

  // No other rank votes for it, so a wait for it says nothing about this rank's further votes. Set before it is queued.
  void set_needs_no_vote() { needs_no_vote_ = true; }
  bool needs_no_vote() const { return needs_no_vote_; }

  // After done(): the GPU event after which the results are there and the inputs are no longer read; null on the host.
  const EventPtr& output_ready() const { return result_.output_ready; }

  // Runs the callback once the work is done: on the thread that finishes the work, or at once on this thread. May be
  // called once only. Waiting threads may wake before the callback runs.
  void then(std::function<void(Work&)> callback);

  // Engine only, once. With an error, the work has failed.
  void finish(Result result, const Error* error = nullptr);
  void fail(const Error& error) { finish(Result(), &error); }

 private:
  // Bits of the state; a thread sleeps only while kAwaited is set, and `callback_` is there only if kFollowed is.
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kAwaited = 1;
  static constexpr std::uint32_t kFollowed = 2;
  static constexpr std::uint32_t kDone = 4;

  std::atomic<std::uint32_t> state_{kPending};
  std::atomic<bool> known_{false};
  bool needs_no_vote_ = false;
  std::function<void(Work&)> callback_;
  Result result_;
  std::optional<Error> error_;
};

}  // namespace sirtaki
