#include "observer/gpu_times.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace sirtaki {
namespace {

constexpr int kTries = 3;  // the quickest of these says best what time it is on the GPU

bool is_of(const GpuTime& time, const BatchEvent& batch) {
  return time.group == batch.group && time.planned == batch.planned && time.number == batch.number;
}

std::int64_t nanoseconds() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

}  // namespace

// Batches of several groups may be queued at the same time.
std::deque<GpuTimes::Pair>::iterator GpuTimes::open_pair(const BatchEvent& batch) {
  return std::ranges::find_if(pairs_,
                              [&](const Pair& pair) { return pair.end == nullptr && is_of(pair.batch, batch); });
}

void GpuTimes::switch_to(bool on) {
  const std::lock_guard lock(mutex_);
  on_.store(on, std::memory_order_relaxed);
  if (on) return;
  pairs_.clear();
  if (stream_ != nullptr) gpu_->destroy(std::exchange(stream_, nullptr));
}

void GpuTimes::on_queueing_begun(const BatchEvent& batch, Device& gpu, Stream stream) {
  if (!on_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  // A batch of tensors of several kinds is queued piece by piece.
  if (open_pair(batch) != pairs_.end() || pairs_.size() >= kMost) return;
  try {
    if (gpu.is_capturing(stream)) return;
    gpu_ = &gpu;
    const GpuTime time{batch.group, batch.planned, batch.number, batch.verb, batch.bytes};
    pairs_.push_back({time, gpu.record_timed(stream), nullptr});
  } catch (const Error&) {
    // The GPU has failed, which the engine notices itself.
  }
}

void GpuTimes::on_queueing_ended(const BatchEvent& batch, Device& gpu, Stream stream) {
  if (!on_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  const auto pair = open_pair(batch);
  if (pair == pairs_.end()) return;
  try {
    pair->end = gpu.record_timed(stream);
  } catch (const Error&) {
    pairs_.erase(pair);
  }
}

std::vector<GpuTimes::Pair> GpuTimes::take_over(std::size_t& waiting) {
  const auto is_over = [](const Pair& pair) { return pair.end != nullptr && pair.end->reached(); };
  const auto first = std::stable_partition(pairs_.begin(), pairs_.end(), std::not_fn(is_over));
  std::vector<Pair> over(std::make_move_iterator(first), std::make_move_iterator(pairs_.end()));
  pairs_.erase(first, pairs_.end());
  waiting = pairs_.size();
  return over;
}

GpuTimes::Moment GpuTimes::now(Device& gpu, Stream stream) {
  Moment best;
  std::int64_t shortest = 0;
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t before = nanoseconds();
    EventPtr event = gpu.record_timed(stream);
    event->block();
    const std::int64_t took = nanoseconds() - before;
    if (best.event == nullptr || took < shortest) best = {std::move(event), before + took / 2};
    if (i == 0 || took < shortest) shortest = took;
  }
  return best;
}

// Each point is placed by its distance to one that is later and not far. So the error is small however long the trace
// is: an event's time has few digits.
std::vector<GpuTime> GpuTimes::take(std::size_t& waiting) {
  const std::lock_guard lock(mutex_);
  std::vector<GpuTime> times;
  try {
    const std::vector<Pair> over = take_over(waiting);
    if (over.empty()) return times;
    if (stream_ == nullptr) stream_ = gpu_->make_stream();
    const Moment moment = now(*gpu_, stream_);
    const auto time_of = [&](const Event& event) { return moment.time - gpu_->elapsed(event, *moment.event).count(); };
    for (const Pair& pair : over) {
      times.push_back(pair.batch);
      times.back().begin = time_of(*pair.begin);
      times.back().end = time_of(*pair.end);
    }
  } catch (const Error&) {  // the GPU has failed
    pairs_.clear();
    waiting = 0;
  }
  return times;
}

}  // namespace sirtaki
