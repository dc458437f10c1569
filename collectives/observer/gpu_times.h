// When a GPU has worked on each batch, by pairs of events around its work. Only while it is switched on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "observer/observer.h"

namespace sirtaki {

struct GpuTime {
  int group = 0;
  bool planned = false;
  std::uint64_t number = 0;  // of the batch
  Verb verb = Verb::kAllreduce;
  std::uint64_t bytes = 0;
  std::int64_t begin = 0;  // ns of CLOCK_MONOTONIC, as records have
  std::int64_t end = 0;
};

class GpuTimes final : public Observer {
 public:
  // A program that does not take the times loses those of further batches.
  static constexpr std::size_t kMost = 10'000;

  // Any thread. Switching off drops what was not taken. No GPU may be used after its driver has ended, so switch off
  // before.
  void switch_to(bool on);
  // The times of the batches whose work on the GPU is over, in order. Any thread; waits for the GPU for some
  // microseconds only. `waiting`: the number of batches whose work is not over.
  std::vector<GpuTime> take(std::size_t& waiting);

  void on_queueing_begun(const BatchEvent& batch, Device& gpu, Stream stream) override;
  void on_queueing_ended(const BatchEvent& batch, Device& gpu, Stream stream) override;

 private:
  struct Pair {
    GpuTime batch;
    EventPtr begin;
    EventPtr end;
  };
  // A point of the GPU's time, and of the host's.
  struct Moment {
    EventPtr event;
    std::int64_t time = 0;
  };

  std::deque<Pair>::iterator open_pair(const BatchEvent& batch);
  std::vector<Pair> take_over(std::size_t& waiting);
  static Moment now(Device& gpu, Stream stream);

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::deque<Pair> pairs_;
  Device* gpu_ = nullptr;    // a rank uses one
  Stream stream_ = nullptr;  // of its own, where nothing else is queued
};

}  // namespace sirtaki
