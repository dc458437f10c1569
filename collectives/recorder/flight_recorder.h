// Records the stations of one rank: the newest events, in memory that does not grow. Always on, so it must cost little:
// no locks, no strings, no formatting. Any thread may read at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "observer/observer.h"
#include "recorder/record_ring.h"
#include "recorder/tick_clock.h"

namespace sirtaki {

class FlightRecorder final : public Observer {
 public:
  // One ring of the engine. Then rings of the program's threads; the last one is shared by all threads that came late.
  static constexpr std::size_t kRings = 6;
  // For each ring, the number of its next record.
  using Cursor = std::array<std::uint64_t, kRings>;

  struct Reading {
    std::vector<Record> records;  // by time
    Cursor next{};
    std::uint64_t lost = 0;  // records that were overwritten before they were read
  };

  // What a thread remembers of its ring.
  struct OwnRing {
    std::uint64_t recorder = 0;
    std::size_t number = 0;
  };

  FlightRecorder();

  Reading read(const Cursor& since) const;
  std::size_t bytes() const;

  // Collects the names of submitted tensors from now on, or no longer and drops them. Takes a lock for each submission.
  void collect_names(bool on);
  std::map<std::uint32_t, std::string> names() const;

  void on_submitted(int group, const Request& request) override;
  void on_wait_begun() override;
  void on_wait_ended() override;
  void on_step_ended() override;
  void on_voted(int group, const Request& request, bool by_slot) override;
  void on_agreed(const AgreedEvent& agreed) override;
  void on_fused(const BatchEvent& batch) override;
  void on_started(const BatchEvent& batch) override;
  void on_all_arrived(const BatchEvent& batch) override;
  void on_wire_begun(const BatchEvent& batch) override;
  void on_wire_ended(const BatchEvent& batch) override;
  void on_finished(const BatchEvent& batch, BatchOutcome outcome) override;
  void on_completed(int group, const Request& request, const Error* error) override;
  void on_plan_locked(int group) override;
  void on_plan_left(int group) override;
  void on_idle() override;

 private:
  // A record that follows another one of the engine at once has its time, which saves a reading of the clock.
  enum class When { kNow, kAsBefore };

  Record now(RecordKind kind) const;
  Record engine_record(RecordKind kind, int group, When when = When::kNow);
  Record batch_record(RecordKind kind, const BatchEvent& batch, When when = When::kNow);
  RecordRing& engine_ring() { return rings_[0]; }
  RecordRing& ring_of(OwnRing& own);  // of the calling thread
  std::size_t claim_ring();

  TickClock clock_;                            // records have its readings until they are read
  std::int64_t engine_time_ = 0;               // of the latest record of the engine
  const Request* ended_with_batch_ = nullptr;  // the batch's end was recorded, and so was that of this request
  const std::uint64_t id_;                     // of this recorder, since an address may be used again
  std::array<RecordRing, kRings> rings_;
  std::atomic<std::size_t> claimed_{0};  // rings of the program's threads
  std::atomic<bool> collects_names_{false};
  mutable std::mutex names_mutex_;
  std::map<std::uint32_t, std::string> names_;
};

// The same on all ranks; never 0.
std::uint32_t hash_of(std::string_view name);

}  // namespace sirtaki
