#include "recorder/flight_recorder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "recorder/run_delay.h"

namespace sirtaki {
namespace {

using Writers = RecordRing::Writers;

constexpr std::size_t kEngineRecords = std::size_t{1} << 16;
constexpr std::size_t kThreadRecords = std::size_t{1} << 13;
constexpr std::size_t kSharedRecords = std::size_t{1} << 14;
constexpr std::size_t kEngineRing = 0;
constexpr std::size_t kSharedRing = FlightRecorder::kRings - 1;

std::atomic<std::uint64_t> recorders{0};

// The run delay of one thread. A reading costs a microsecond, and twenty after other work has filled the caches. So
// few waits are measured, and none after a short one: then ranks do not wait for cores.
class OwnDelay {
 public:
  void begin_wait(std::uint64_t ticks) {
    at_begin_ = -1;
    begun_ = ticks;
    if (!was_long_ || ticks - measured_ < kPause) return;
    measured_ = ticks;
    at_begin_ = run_delay();
  }

  std::uint64_t end_wait(std::uint64_t ticks) {
    was_long_ = ticks - begun_ > kLong;
    return at_begin_ < 0 ? 0 : since(std::exchange(at_begin_, -1));
  }

  std::uint64_t end_step() {
    const std::int64_t before = std::exchange(at_step_, run_delay());
    return before < 0 ? 0 : static_cast<std::uint64_t>(std::max<std::int64_t>(0, at_step_ - before));
  }

 private:
  static constexpr std::uint64_t kPause = 1 << 22;  // of the tick clock: one to four milliseconds

  static constexpr std::uint64_t kLong = kPause / 16;

  static std::uint64_t since(std::int64_t before) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, run_delay() - before));
  }

  bool was_long_ = true;
  std::uint64_t begun_ = 0;     // when the last wait began
  std::uint64_t measured_ = 0;  // when the last measured wait began
  std::int64_t at_begin_ = -1;
  std::int64_t at_step_ = -1;
};

// In one object, since each access to a thread's variables is a call.
struct OwnState {
  FlightRecorder::OwnRing ring;
  OwnDelay delay;
};

constinit thread_local OwnState own_state;

// Not inline: the compiler would look up the variable again at each use.
[[gnu::noinline]] OwnState& find_own_state() { return own_state; }

void describe(const Request& request, Record& record) {
  record.verb = static_cast<std::uint8_t>(request.verb);
  record.name = hash_of(request.name);
}

std::uint64_t tensor_bytes(const Request& request) {
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : request.tensors) {
    bytes += static_cast<std::uint64_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
  }
  return bytes;
}

// Orders all records by time: those before `begin` are in order already, and mostly those of one ring are, too.
void merge_last_run(std::vector<Record>& records, std::ptrdiff_t begin) {
  const auto run = records.begin() + begin;
  const auto earlier = [](const Record& a, const Record& b) { return a.time < b.time; };
  if (!std::is_sorted(run, records.end(), earlier)) std::stable_sort(run, records.end(), earlier);
  std::inplace_merge(records.begin(), run, records.end(), earlier);
}

// A moment as 32 bits, in steps of 256 ns. They are unique within 18 minutes: longer than any limit lets a rank wait.
constexpr int kMomentShift = 8;
std::uint32_t moment_of(std::int64_t nanoseconds) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(nanoseconds) >> kMomentShift);
}

// How long before the record the last rank came, from the moment at which it came. So the path of a gradient need not
// read a second clock. An age far below zero was too large for 32 bits; below zero is an error of the tick clock.
std::uint32_t age_at(const Record& record) {
  constexpr std::int64_t kError = 1'000'000'000;
  const auto difference = static_cast<std::int32_t>(moment_of(record.time) - record.name);
  const std::int64_t age = std::int64_t{difference} << kMomentShift;
  if (record.peer < 0 || age < -kError || age >= kUnknownAge) return kUnknownAge;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(0, age));
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
  std::vector<Record>& records = reading.records;
  for (std::size_t i = 0; i < kRings; ++i) {
    const auto before = static_cast<std::ptrdiff_t>(records.size());
    reading.next[i] = rings_[i].read(since[i], records, reading.lost);
    merge_last_run(records, before);
  }
  const TickClock::Conversion time_of = clock_.conversion();
  for (Record& record : records) {
    record.time = time_of(static_cast<std::uint64_t>(record.time));
    if (record.kind == static_cast<std::uint8_t>(RecordKind::kAllArrived)) record.name = age_at(record);
  }
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

RecordRing& FlightRecorder::ring_of(OwnRing& own) {
  if (own.recorder != id_) own = {.recorder = id_, .number = claim_ring()};
  return rings_[own.number];
}

Record FlightRecorder::now(RecordKind kind) const {
  Record record;
  record.time = static_cast<std::int64_t>(clock_.read());
  record.kind = static_cast<std::uint8_t>(kind);
  return record;
}

Record FlightRecorder::engine_record(RecordKind kind, int group, When when) {
  if (when == When::kNow) engine_time_ = static_cast<std::int64_t>(clock_.read());
  Record record;
  record.time = engine_time_;
  record.kind = static_cast<std::uint8_t>(kind);
  record.group = static_cast<std::uint16_t>(group);
  return record;
}

Record FlightRecorder::batch_record(RecordKind kind, const BatchEvent& batch, When when) {
  Record record = engine_record(kind, batch.group, when);
  if (batch.planned) record.group |= kPlannedBit;
  record.bytes = batch.bytes;
  record.number = static_cast<std::uint32_t>(batch.number);
  record.verb = static_cast<std::uint8_t>(batch.verb);
  return record;
}

void FlightRecorder::on_submitted(int group, const Request& request) {
  Record record = now(RecordKind::kSubmitted);
  record.group = static_cast<std::uint16_t>(group);
  describe(request, record);
  record.bytes = tensor_bytes(request);
  ring_of(find_own_state().ring).write(record);
  if (!collects_names_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(names_mutex_);
  names_.try_emplace(record.name, request.name);
}

void FlightRecorder::on_wait_begun() {
  const Record record = now(RecordKind::kWaitBegin);
  OwnState& own = find_own_state();
  ring_of(own.ring).write(record);
  own.delay.begin_wait(static_cast<std::uint64_t>(record.time));
}

void FlightRecorder::on_wait_ended() {
  Record record = now(RecordKind::kWaitEnd);
  OwnState& own = find_own_state();
  record.bytes = own.delay.end_wait(static_cast<std::uint64_t>(record.time));
  ring_of(own.ring).write(record);
}

void FlightRecorder::on_step_ended() {
  Record record = now(RecordKind::kStepEnd);
  OwnState& own = find_own_state();
  record.bytes = own.delay.end_step();
  ring_of(own.ring).write(record);
}

void FlightRecorder::on_voted(int group, const Request& request, bool) {
  Record record = engine_record(RecordKind::kVoted, group);
  describe(request, record);
  record.bytes = tensor_bytes(request);
  engine_ring().write(record);
}

void FlightRecorder::on_agreed(const AgreedEvent& agreed) {
  Record record = engine_record(RecordKind::kAgreed, agreed.group);
  describe(agreed.request, record);
  record.peer = agreed.arrival.last;
  record.bytes = static_cast<std::uint64_t>(agreed.arrival.spread.count());
  engine_ring().write(record);
}

void FlightRecorder::on_all_arrived(const BatchEvent& batch) {
  Record record = batch_record(RecordKind::kAllArrived, batch);
  record.peer = batch.arrival.last;
  record.bytes = static_cast<std::uint64_t>(batch.arrival.spread.count());
  record.name = moment_of(std::chrono::nanoseconds(batch.arrival.at.time_since_epoch()).count());
  engine_ring().write(record);
}

// A planned batch begins at once, or when its predecessor ends. Only its time is needed here.
void FlightRecorder::on_fused(const BatchEvent& batch) {
  const Record record = batch_record(RecordKind::kBatchReady, batch);
  if (!batch.planned) engine_ring().write(record);
}

void FlightRecorder::on_started(const BatchEvent& batch) {
  const When when = batch.planned ? When::kAsBefore : When::kNow;
  engine_ring().write(batch_record(RecordKind::kBatchBegin, batch, when));
}

void FlightRecorder::on_wire_begun(const BatchEvent& batch) {
  engine_ring().write(batch_record(RecordKind::kWireBegin, batch));
}

void FlightRecorder::on_wire_ended(const BatchEvent& batch) {
  engine_ring().write(batch_record(RecordKind::kWireEnd, batch));
}

// A batch that a plane has carried ends right after that, and so do its requests. A single request needs no record.
void FlightRecorder::on_finished(const BatchEvent& batch, BatchOutcome outcome) {
  Record record = batch_record(RecordKind::kBatchEnd, batch);
  record.peer = static_cast<std::int32_t>(outcome);
  if (outcome == BatchOutcome::kDone && batch.only != nullptr) {
    record.name = hash_of(batch.only->name);
    ended_with_batch_ = batch.only;
  }
  engine_ring().write(record);
}

void FlightRecorder::on_completed(int group, const Request& request, const Error* error) {
  if (std::exchange(ended_with_batch_, nullptr) == &request && error == nullptr) return;
  const bool in_batch = error == nullptr && request.verb <= Verb::kBarrier;
  Record record = engine_record(RecordKind::kCompleted, group, in_batch ? When::kAsBefore : When::kNow);
  describe(request, record);
  record.peer = error == nullptr ? 0 : 1;
  engine_ring().write(record);
}

void FlightRecorder::on_plan_locked(int group) { engine_ring().write(engine_record(RecordKind::kPlanLocked, group)); }

void FlightRecorder::on_plan_left(int group) { engine_ring().write(engine_record(RecordKind::kPlanLeft, group)); }

void FlightRecorder::on_idle() { engine_ring().write(engine_record(RecordKind::kIdle, 0)); }

}  // namespace sirtaki
