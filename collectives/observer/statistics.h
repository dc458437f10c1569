// Counts the announcements of an engine. Any thread may read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "observer/observer.h"

namespace sirtaki {

class Statistics final : public Observer {
 public:
  using Counter = std::atomic<std::uint64_t>;

  Counter batches{0};
  Counter tensors{0};
  Counter bytes{0};
  Counter messages{0};
  Counter cache_hits{0};
  Counter cache_misses{0};
  Counter idle_wakeups{0};
  Counter planned_batches{0};  // those of `batches` that ran without votes
  Counter plans{0};            // locked plans
  Counter departures{0};       // plans that ended because this rank or another departed
  Counter wait_cpu_ns{0};      // processor time of the program's threads in waits, with helping; see time_waits()

  // Counts wait_cpu_ns from now on. That costs two system calls for each wait.
  void time_waits() { times_waits_.store(true, std::memory_order_relaxed); }
  // How often each data plane carried a batch, by its name.
  std::map<std::string, std::uint64_t> plane_uses() const;

  void on_wait_begun() override;
  void on_wait_ended() override;
  void on_voted(int group, const Request& request, bool by_slot) override;
  void on_transferred(const BatchEvent& batch, std::string_view plane) override;
  void on_finished(const BatchEvent& batch, BatchOutcome outcome) override;
  void on_plan_locked(int group) override;
  void on_plan_left(int group) override;
  void on_messages_sent(int group, int count) override;
  void on_idle() override;

 private:
  struct PlaneUse {
    std::string name;
    Counter count{0};
  };
  // More entries than there are names of planes. The engine appends an entry, then raises plane_count_, so that readers
  // need no lock.
  std::array<PlaneUse, 16> planes_;
  std::atomic<std::size_t> plane_count_{0};
  std::atomic<bool> times_waits_{false};
};

}  // namespace sirtaki
