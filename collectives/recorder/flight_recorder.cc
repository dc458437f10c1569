#include "recorder/flight_recorder.h"

#include <algorithm>
#include <cstring>

namespace sirtaki {
namespace {

using Writers = RecordRing::Writers;

constexpr std::size_t kEngineRecords = std::size_t{1} << 16;
constexpr std::size_t kThreadRecords = std::size_t{1} << 13;
constexpr std::size_t kSharedRecords = std::size_t{1} << 14;
constexpr std::size_t kEngineRing = 0;
constexpr std::size_t kSharedRing = FlightRecorder::kRings - 1;

std::atomic<std::uint64_t> recorders{0};

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

Record record_of(RecordKind kind, int group = 0) {
  Record record;
  record.time = now();
  record.kind = static_cast<std::uint8_t>(kind);
  record.group = static_cast<std::uint16_t>(group);
  return record;
}

Record record_of(RecordKind kind, int group, const Request& request) {
  Record record = record_of(kind, group);
  for (const TensorSpec& tensor : request.tensors) {
    record.bytes += static_cast<std::uint64_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
  }
  record.verb = static_cast<std::uint8_t>(request.verb);
  record.name = hash_of(request.name);
  return record;
}

}  // namespace

// Eight letters at a time.
std::uint32_t hash_of(std::string_view name) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
  std::uint64_t hash = name.size() * kFactor;
  while (!name.empty()) {
    std::uint64_t word = 0;
    const std::size_t length = std::min(name.size(), sizeof(word));
    std::memcpy(&word, name.data(), length);
    hash = (hash ^ word) * kFactor;
    hash ^= hash >> 32;
    name.remove_prefix(length);
  }
  const auto result = static_cast<std::uint32_t>(hash);
  return result == 0 ? 1 : result;
}

FlightRecorder::FlightRecorder()
    : id_(recorders.fetch_add(1) + 1),
      rings_{RecordRing(kEngineRecords, Writers::kOne), RecordRing(kThreadRecords, Writers::kOne),
             RecordRing(kThreadRecords, Writers::kOne), RecordRing(kThreadRecords, Writers::kOne),
             RecordRing(kThreadRecords, Writers::kOne), RecordRing(kSharedRecords, Writers::kSeveral)} {}

std::size_t FlightRecorder::bytes() const {
  std::size_t total = 0;
  for (const RecordRing& ring : rings_) total += ring.bytes();
  return total;
}

FlightRecorder::Reading FlightRecorder::read(const Cursor& since) const {
  Reading reading;
  for (std::size_t i = 0; i < kRings; ++i) {
    reading.next[i] = rings_[i].read(since[i], reading.records, reading.lost);
  }
  std::ranges::stable_sort(reading.records, {}, &Record::time);
  return reading;
}

void FlightRecorder::collect_names(bool on) {
  const std::lock_guard lock(names_mutex_);
  names_.clear();
  collects_names_.store(on, std::memory_order_relaxed);
}

std::map<std::uint32_t, std::string> FlightRecorder::names() const {
  const std::lock_guard lock(names_mutex_);
  return names_;
}

// A ring stays with its thread also after the thread's end, so that its records can be read.
std::size_t FlightRecorder::claim_ring() {
  const std::size_t ring = kEngineRing + 1 + claimed_.fetch_add(1, std::memory_order_relaxed);
  return std::min(ring, kSharedRing);
}

RecordRing& FlightRecorder::ring_of_this_thread() {
  thread_local std::uint64_t recorder = 0;
  thread_local std::size_t ring = 0;
  if (recorder != id_) {
    ring = claim_ring();
    recorder = id_;
  }
  return rings_[ring];
}

void FlightRecorder::record_batch(RecordKind kind, const BatchEvent& batch, int peer) {
  Record record = record_of(kind, batch.group);
  if (batch.planned) record.group |= kPlannedBit;
  record.bytes = batch.bytes;
  record.number = static_cast<std::uint32_t>(batch.number);
  record.peer = peer;
  record.verb = static_cast<std::uint8_t>(batch.verb);
  rings_[kEngineRing].write(record);
}

void FlightRecorder::on_submitted(int group, const Request& request) {
  const Record record = record_of(RecordKind::kSubmitted, group, request);
  ring_of_this_thread().write(record);
  if (!collects_names_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(names_mutex_);
  names_.try_emplace(record.name, request.name);
}

void FlightRecorder::on_wait_begun() { ring_of_this_thread().write(record_of(RecordKind::kWaitBegin)); }

void FlightRecorder::on_wait_ended() { ring_of_this_thread().write(record_of(RecordKind::kWaitEnd)); }

void FlightRecorder::on_step_ended() { ring_of_this_thread().write(record_of(RecordKind::kStepEnd)); }

void FlightRecorder::on_voted(int group, const Request& request, bool) {
  rings_[kEngineRing].write(record_of(RecordKind::kVoted, group, request));
}

void FlightRecorder::on_agreed(const AgreedEvent& agreed) {
  Record record = record_of(RecordKind::kAgreed, agreed.group, agreed.request);
  record.peer = agreed.last;
  record.bytes = static_cast<std::uint64_t>(std::chrono::nanoseconds(agreed.spread).count());
  rings_[kEngineRing].write(record);
}

void FlightRecorder::on_fused(const BatchEvent& batch) { record_batch(RecordKind::kBatchReady, batch); }

void FlightRecorder::on_started(const BatchEvent& batch) { record_batch(RecordKind::kBatchBegin, batch); }

void FlightRecorder::on_all_arrived(const BatchEvent& batch) { record_batch(RecordKind::kAllArrived, batch); }

void FlightRecorder::on_transferred(const BatchEvent& batch, std::string_view) {
  record_batch(RecordKind::kTransferred, batch);
}

void FlightRecorder::on_finished(const BatchEvent& batch, BatchOutcome outcome) {
  record_batch(RecordKind::kBatchEnd, batch, static_cast<int>(outcome));
}

void FlightRecorder::on_completed(int group, const Request& request, const Error* error) {
  Record record = record_of(RecordKind::kCompleted, group, request);
  record.peer = error == nullptr ? 0 : 1;
  rings_[kEngineRing].write(record);
}

void FlightRecorder::on_plan_locked(int group) {
  rings_[kEngineRing].write(record_of(RecordKind::kPlanLocked, group));
}

void FlightRecorder::on_plan_left(int group) { rings_[kEngineRing].write(record_of(RecordKind::kPlanLeft, group)); }

void FlightRecorder::on_idle() { rings_[kEngineRing].write(record_of(RecordKind::kIdle)); }

}  // namespace sirtaki
