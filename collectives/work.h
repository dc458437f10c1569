// The promise that a submission gives back. The engine fulfils it once; any number of threads may wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
};

class Work {
 public:
  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }

  // Done, by a failure in which memory may still be written to.
  bool abandoned() const { return done() && error_ && error_->kind() == ErrorKind::kAborted; }

  // Sleeps until done. False if a signal came first: look at it and wait again.
  bool wait();

  // After done(): throws what went wrong, or gives the result.
  Result& result();

  // Engine only, once.
  void finish(Result result);
  void fail(const Error& error);

 private:
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kAwaited = 1;
  static constexpr std::uint32_t kDone = 2;

  void publish();

  std::atomic<std::uint32_t> state_{kPending};
  Result result_;
  std::optional<Error> error_;
};

}  // namespace sirtaki
