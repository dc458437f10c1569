// What the program's threads hand to the engine's thread: submissions, checked and named, and calls to run there. Its
// mutex also guards the table of process sets, so that a submission takes one lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "observer/observer.h"
#include "queue/process_sets.h"
#include "queue/submission.h"
#include "sleep/doorbell.h"

namespace sirtaki {

class SubmitQueue {
 public:
  struct Entry {
    int process_set;
    Submission submission;
    std::shared_ptr<Work> after;  // an earlier call of the same name that has to be done first, or null
  };

  SubmitQueue(int rank, int job_size, Doorbell& doorbell, const Observers& observers)
      : doorbell_(doorbell), observers_(observers), sets_(rank, job_size) {}

  // ---- any thread ----

  // Throws Error at once for what this rank can see is wrong, and after close(). Without `wakes` the caller has to see
  // to it that the engine's thread, or a thread that helps, looks into the queue.
  std::shared_ptr<Work> put(int process_set, Submission& submission, bool wakes);
  // Runs the call on the thread that does the engine's work, before it takes further submissions.
  void post(std::function<void()> call, bool wakes = true);
  // From now on put() throws this. A failure of the job (kAborted) takes the place of another error.
  void close(const Error& error);

  // The program has learned of a result, or is about to: what it submits afterwards may depend on that.
  void begin_epoch() { epoch_.fetch_add(1, std::memory_order_release); }

  // Calls with the table of process sets, locked.
  template <class Call>
  auto with_sets(Call&& call) {
    const std::lock_guard lock(mutex_);
    return call(sets_);
  }

  // ---- the thread that does the engine's work ----

  // Has anything come since take()? Without the lock, for which the program's threads would have to wait. A ring that
  // this sees makes the change before that ring visible.
  bool changed() const {
    static_cast<void>(doorbell_.rings());
    return changes_.load(std::memory_order_acquire) != changes_taken_;
  }
  // Runs the calls, which may throw. Gives the submissions, valid until the next call.
  std::vector<Entry>& take();
  // The same without running the calls: they are dropped.
  std::vector<Entry>& take_submissions();

 private:
  void count_change() { changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  std::vector<Entry>& swap_entries();

  Doorbell& doorbell_;
  const Observers& observers_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<std::uint32_t> changes_{0};  // written under the mutex
  std::uint32_t changes_taken_ = 0;
  std::vector<Entry> taken_;

  mutable std::mutex mutex_;
  ProcessSets sets_;
  std::vector<Entry> entries_;
  std::vector<std::function<void()>> calls_;
  std::optional<Error> refusal_;
};

}  // namespace sirtaki
