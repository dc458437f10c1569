#include "observer/statistics.h"

#include <ctime>

namespace sirtaki {
namespace {

constexpr std::uint64_t kNotTimed = ~std::uint64_t{0};

// The thread's processor time when its wait began.
thread_local std::uint64_t wait_start = kNotTimed;

std::uint64_t processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

void count(Statistics::Counter& counter, std::uint64_t more = 1) { counter.fetch_add(more, std::memory_order_relaxed); }

}  // namespace

void Statistics::on_wait_begun() {
  wait_start = times_waits_.load(std::memory_order_relaxed) ? processor_time() : kNotTimed;
}

void Statistics::on_wait_ended() {
  if (wait_start != kNotTimed) count(wait_cpu_ns, processor_time() - wait_start);
}

void Statistics::on_voted(int, const Request&, bool by_slot) { count(by_slot ? cache_hits : cache_misses); }

void Statistics::on_transferred(const BatchEvent&, std::string_view plane) {
  const std::size_t known = plane_count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < known; ++i) {
    if (planes_[i].name == plane) return count(planes_[i].count);
  }
  if (known == planes_.size()) return;
  planes_[known].name = plane;
  count(planes_[known].count);
  plane_count_.store(known + 1, std::memory_order_release);
}

void Statistics::on_finished(const BatchEvent& batch, BatchOutcome outcome) {
  if (outcome == BatchOutcome::kCalledOff) return;
  count(batches);
  count(tensors, batch.tensors);
  count(bytes, batch.bytes);
  if (batch.planned) count(planned_batches);
}

void Statistics::on_plan_locked(int) { count(plans); }

void Statistics::on_plan_left(int) { count(departures); }

void Statistics::on_messages_sent(int, int sent) { count(messages, static_cast<std::uint64_t>(sent)); }

void Statistics::on_idle() { count(idle_wakeups); }

std::map<std::string, std::uint64_t> Statistics::plane_uses() const {
  std::map<std::string, std::uint64_t> result;
  const std::size_t known = plane_count_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < known; ++i) result[planes_[i].name] = planes_[i].count.load(std::memory_order_relaxed);
  return result;
}

}  // namespace sirtaki
