// Batches, waits and ends of steps as NVTX ranges and marks, so that a profiler of GPUs (Nsight Systems) shows them
// among the kernels. Only while it is switched on.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "observer/observer.h"

namespace sirtaki {

// NVTX's functions: of a range that may begin and end on different threads, of a thread's innermost range, and a mark.
struct NvtxCalls {
  std::uint64_t (*start)(const char* name) = nullptr;
  void (*end)(std::uint64_t range) = nullptr;
  int (*push)(const char* name) = nullptr;
  int (*pop)() = nullptr;
  void (*mark)(const char* name) = nullptr;
};

class NvtxRanges final : public Observer {
 public:
  explicit NvtxRanges(const NvtxCalls& calls) : calls_(calls) {}

  // Any thread. What is under way is still ended.
  void switch_to(bool on) { on_.store(on, std::memory_order_relaxed); }

  void on_wait_begun() override;
  void on_wait_ended() override;
  void on_step_ended() override;
  void on_started(const BatchEvent& batch) override;
  void on_finished(const BatchEvent& batch, BatchOutcome outcome) override;

 private:
  bool is_on() const { return on_.load(std::memory_order_relaxed); }

  const NvtxCalls calls_;
  std::atomic<bool> on_{false};
  std::map<int, std::uint64_t> running_;  // the range of each group's batch; a group runs one at a time
};

}  // namespace sirtaki
