// One event at a station, as the flight recorder stores it. Python reads the same bytes (docs/timing.md).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sirtaki {

// The numbers are part of the binding; append, never reorder.
enum class RecordKind : std::uint8_t {
  kSubmitted,
  kVoted,
  kAgreed,
  kBatchReady,
  kBatchBegin,
  kAllArrived,
  kTransferred,
  kBatchEnd,
  kCompleted,
  kWaitBegin,
  kWaitEnd,
  kStepEnd,
  kPlanLocked,
  kPlanLeft,
  kIdle,
};

inline constexpr std::array<std::string_view, 15> kRecordKindNames = {
    "submitted",   "voted",     "agreed",    "batch_ready", "batch_begin", "all_arrived", "transferred", "batch_end",
    "completed",   "wait_begin", "wait_end", "step_end",    "plan_locked", "plan_left",   "idle"};

// The group of a record of a locked plan's batch has this bit.
inline constexpr std::uint16_t kPlannedBit = 0x8000;

struct Record {
  std::int64_t time = 0;     // ns of CLOCK_MONOTONIC
  std::uint64_t bytes = 0;   // of the batch or the request; kAgreed: how long after the first vote the last came, in ns
  std::uint32_t number = 0;  // of the batch
  std::int32_t peer = -1;    // kAgreed: the global rank that was last; kBatchEnd: the BatchOutcome
  std::uint16_t group = 0;
  std::uint8_t kind = 0;
  std::uint8_t verb = 0;
  std::uint32_t name = 0;  // hash_of(the tensor's name)
};
static_assert(sizeof(Record) == 32);

}  // namespace sirtaki
