#include "recorder/wait_divider.h"

#include <algorithm>

#include "base/types.h"

namespace sirtaki {

void WaitParts::add(const WaitParts& other) {
  late += other.late;
  agreement += other.agreement;
  queue += other.queue;
  copy += other.copy;
  wire += other.wire;
  host += other.host;
}

// First from the parts in which the thread is least busy.
void WaitParts::take_delay(std::int64_t delay) {
  for (std::int64_t* part : {&wire, &agreement, &queue, &copy, &late}) {
    const std::int64_t moved = std::clamp<std::int64_t>(delay, 0, *part);
    *part -= moved;
    host += moved;
    delay -= moved;
  }
}

void StepTimes::add(const StepTimes& other) {
  length += other.length;
  wait.add(other.wait);
  exchange += other.exchange;
  hidden += other.hidden;
  delay += other.delay;
}

void WaitDivider::Division::charge(Phase phase, std::int64_t from, std::int64_t to) {
  const std::int64_t time = to - from;
  switch (phase) {
    case Phase::kHost:
      parts.host += time;
      break;
    case Phase::kQueue:
      parts.queue += time;
      break;
    case Phase::kCopy:
      parts.copy += time;
      break;
    case Phase::kWire:
      parts.wire += time;
      break;
    case Phase::kArrival:
      if (!arriving.empty() && arriving.back().second == from) {
        arriving.back().second = to;
      } else {
        arriving.emplace_back(from, to);
      }
  }
}

// `boundary`: when the last rank arrived.
void WaitDivider::Division::divide(std::int64_t boundary) {
  for (const auto& [from, to] : arriving) {
    const std::int64_t middle = std::clamp(boundary, from, to);
    parts.late += middle - from;
    parts.agreement += to - middle;
  }
  arriving.clear();
}

// Empties it. Without an arrival, nothing shows that another rank was late.
WaitParts WaitDivider::Division::take() {
  divide(0);
  return std::exchange(parts, {});
}

void WaitDivider::add(std::span<const Record> records) {
  for (const Record& record : records) add(record);
}

void WaitDivider::forget() {
  step_is_whole_ = false;
  lanes_.clear();
  in_flight_ = votes_ = transfers_ = 0;
  waiters_ = 0;
  wait_ = tail_ = {};
  open_ = {};
  step_begin_ = now_ = 0;
}

StepTimes WaitDivider::open() const {
  StepTimes open = open_;
  Division division = waits_by_calls() ? wait_ : tail_;
  open.wait.add(division.take());
  if (!waits_by_calls()) open.hidden -= tail_.exchange;
  open.length = now_ - step_begin_;
  return open;
}

void WaitDivider::add(const Record& record) {
  if (now_ == 0) step_begin_ = now_ = record.time;
  pass_time(std::max(record.time, now_));  // a record may come late, if its thread was stopped while it wrote
  apply(record);
}

void WaitDivider::pass_time(std::int64_t time) {
  const Phase current = phase();
  if (waiters_ > 0) wait_.charge(current, now_, time);
  if (in_flight_ > 0) tail_.charge(current, now_, time);
  if (moves_data()) {
    open_.exchange += time - now_;
    tail_.exchange += time - now_;
    if (waiters_ == 0) open_.hidden += time - now_;
  }
  now_ = time;
}

bool WaitDivider::moves_data() const {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane.second.running && !lane.second.arriving; });
}

// What keeps the rank: the batch that has come farthest.
WaitDivider::Phase WaitDivider::phase() const {
  bool suspended = false;
  bool arriving = votes_ > 0;
  bool queued = in_flight_ > 0;
  for (const auto& [group, lane] : lanes_) {
    if (lane.running && !lane.arriving && !lane.suspended) return Phase::kCopy;
    suspended |= lane.running && lane.suspended;
    arriving |= lane.running && lane.arriving;
    queued |= lane.queued > 0;
  }
  if (suspended) return Phase::kWire;
  if (arriving) return Phase::kArrival;
  if (queued) return Phase::kQueue;
  return transfers_ > 0 ? Phase::kWire : Phase::kHost;
}

void WaitDivider::apply(const Record& record) {
  const auto kind = static_cast<RecordKind>(record.kind);
  const bool transfers = is_point_to_point(static_cast<Verb>(record.verb));
  const bool joins = record.verb == static_cast<std::uint8_t>(Verb::kJoin);  // ends with the others' joins, in no batch
  switch (kind) {
    case RecordKind::kSubmitted:
      if (joins) return;
      if (transfers) {
        ++transfers_;
        return;
      }
      ++in_flight_;
      tail_ = {};
      return;
    case RecordKind::kVoted:
      if (!joins) ++votes_;
      return;
    case RecordKind::kAgreed:
      votes_ = std::max<std::int64_t>(0, votes_ - 1);
      return;
    case RecordKind::kCompleted:
      if (transfers) {
        transfers_ = std::max<std::int64_t>(0, transfers_ - 1);
      } else if (!joins) {
        complete_request();
      }
      return;
    case RecordKind::kWaitBegin:
      ++waiters_;
      has_waited_ = true;
      return;
    case RecordKind::kWaitEnd:
      return on_wait_end(record);
    case RecordKind::kStepEnd:
      return on_step_end(record);
    default:
      return apply_batch(kind, record);
  }
}

void WaitDivider::apply_batch(RecordKind kind, const Record& record) {
  Lane& lane = lanes_[record.group];
  switch (kind) {
    case RecordKind::kBatchReady:
      ++lane.queued;
      return;
    case RecordKind::kBatchBegin:
      lane = {.queued = std::max(0, lane.queued - 1), .running = true, .arriving = (record.group & kPlannedBit) != 0};
      return;
    case RecordKind::kAllArrived:
      lane.arriving = false;
      return on_all_arrived(record);
    case RecordKind::kWireBegin:
      lane.suspended = true;
      return;
    case RecordKind::kWireEnd:
      lane.suspended = false;
      return;
    case RecordKind::kBatchEnd:
      lane.running = false;
      if (record.name != 0) complete_request();
      return;
    default:
      return;
  }
}

void WaitDivider::complete_request() {
  in_flight_ = std::max<std::int64_t>(0, in_flight_ - 1);
  votes_ = std::min(votes_, in_flight_);  // it may have been refused without an agreement
}

void WaitDivider::on_all_arrived(const Record& record) {
  if (record.peer < 0) return;
  const std::int64_t boundary = record.name == kUnknownAge ? 0 : record.time - static_cast<std::int64_t>(record.name);
  wait_.divide(boundary);
  tail_.divide(boundary);
  const auto lateness = static_cast<std::int64_t>(record.bytes);
  if (lateness <= lateness_ && last_ >= 0) return;
  last_ = record.peer;
  lateness_ = lateness;
}

void WaitDivider::on_wait_end(const Record& record) {
  if (waiters_ == 0) return;
  --waiters_;
  if (waiters_ > 0) return;
  WaitParts parts = wait_.take();
  parts.take_delay(static_cast<std::int64_t>(record.bytes));
  open_.wait.add(parts);
}

void WaitDivider::on_step_end(const Record& record) {
  open_.wait.add(waits_by_calls() ? wait_.take() : tail_.take());
  if (!waits_by_calls()) open_.hidden -= tail_.exchange;
  open_.length = now_ - step_begin_;
  open_.delay = static_cast<std::int64_t>(record.bytes);
  if (step_is_whole_) {
    ++steps_;
    total_.add(open_);
    latest_ = open_;
    if (last_ >= 0) {
      LastRank& last = last_ranks_[last_];
      ++last.steps;
      last.lateness += lateness_;
    }
  }
  step_is_whole_ = true;
  step_begin_ = now_;
  open_ = {};
  tail_ = {};
  waited_before_ = has_waited_;
  has_waited_ = waiters_ > 0;
  last_ = -1;
  lateness_ = 0;
}

}  // namespace sirtaki
