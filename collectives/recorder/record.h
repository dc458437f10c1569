// One event at a station, as the flight recorder stores it. Python reads the same bytes (docs/timing.md).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sirtaki {

enum class RecordKind : std::uint8_t {
  kSubmitted,
  kVoted,
  kAgreed,
  kBatchReady,
  kBatchBegin,
  kAllArrived,
  kBatchEnd,
  kCompleted,
  kWaitBegin,
  kWaitEnd,
  kStepEnd,
  kPlanLocked,
  kPlanLeft,
  kIdle,
  kWireBegin,
  kWireEnd,
};

inline constexpr std::array<std::string_view, 16> kRecordKindNames = {
    "submitted",  "voted",    "agreed",   "batch_ready", "batch_begin", "all_arrived", "batch_end",  "completed",
    "wait_begin", "wait_end", "step_end", "plan_locked", "plan_left",   "idle",        "wire_begin", "wire_end"};

// The group of a record of a locked plan's batch has this bit.
inline constexpr std::uint16_t kPlannedBit = 0x8000;

struct Record {
  std::int64_t time = 0;     // ns of CLOCK_MONOTONIC
  std::uint64_t bytes = 0;   // of the batch or the request; see below
  std::uint32_t number = 0;  // of the batch
  std::int32_t peer = -1;    // see below
  std::uint16_t group = 0;   // process set
  std::uint8_t kind = 0;
  std::uint8_t verb = 0;
  std::uint32_t name = 0;  // of a request: hash_of() its name
};
// kBatchBegin of a planned batch: such a batch has no kBatchReady, since it is queued behind its predecessor at most.
// kAgreed, kAllArrived: `peer` is the global rank that came last, and `bytes` how long after the first it came, in ns.
// kAllArrived: `name` is how long before this record it came, in ns, kUnknownAge if that is unknown or too much.
// kBatchEnd: `peer` is the BatchOutcome. If `name` is not 0, this is the kCompleted of the batch's only request, too.
// kCompleted: `peer` is 1 if the request failed, else 0.
// kWaitEnd, kStepEnd: `bytes` is how long this thread was ready and got no core, in ns: in this wait (0 if that was not
// measured), and since this thread's last kStepEnd.
inline constexpr std::uint32_t kUnknownAge = 0xFFFFFFFF;
static_assert(sizeof(Record) == 32);

}  // namespace sirtaki
