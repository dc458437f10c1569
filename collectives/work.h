// The promise that a submission gives back. The engine fulfils it once; any number of threads may wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "error.h"
#include "futex.h"
#include "host_buffer.h"
#include "types.h"

namespace sirtaki {

// What an operation gave, beside what it wrote into the caller's memory.
struct Result {
  std::vector<HostBuffer> buffers;  // one for each tensor; empty where the caller gave the memory
  std::vector<Shape> shapes;        // of each output
  std::vector<std::int64_t> received_splits;
  std::int64_t value = 0;
  EventPtr there;  // GPU: the point at which the results are there; the work is done before that
};

class Work {
 public:
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }

  // Done, by a failure in which memory may still be written to.
  bool abandoned() const { return done() && error_ && error_->kind() == ErrorKind::kAborted; }

  // Sleeps until done. False if a signal came first: look at it and wait again.
  bool wait();

  // After done(): throws what went wrong, or gives the result, of which the program has then learned.
  Result& result();

  // The program has learned that this is done, or has dropped it and never will.
  void note_known() { known_.store(true, std::memory_order_relaxed); }
  bool known() const { return known_.load(std::memory_order_relaxed); }

  // After done(): a point in a GPU's order that the results, and the inputs' use, come before; null on the host.
  const EventPtr& there() const { return result_.there; }

  // Calls back once when done: on the thread that finishes the work, or on this one if it is done already. To be called
  // at most once. Threads that wait may wake before the call.
  void then(std::function<void(Work&)> callback);

  // Engine only, once.
  void finish(Result result);
  void fail(const Error& error);

 private:
  // Bits of the state; a thread sleeps only while kAwaited is set, and `callback_` is there only if kFollowed is.
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kAwaited = 1;
  static constexpr std::uint32_t kFollowed = 2;
  static constexpr std::uint32_t kDone = 4;

  void publish();

  std::atomic<std::uint32_t> state_{kPending};
  std::atomic<bool> known_{false};
  std::function<void(Work&)> callback_;
  Result result_;
  std::optional<Error> error_;
};

}  // namespace sirtaki
