// Why a job cannot go on. The first rank with a failure records the cause once; all ranks then report the same cause.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/serialization.h"

namespace sirtaki {

// In the order of their names; append, never reorder.
enum class FailureKind : std::uint8_t {
  kException,
  kSignal,
  kEarlyExit,
  kKilled,
  kLostConnection,
  kFailedCollective,
  kRefusedNegotiation,
  kPassedLimit,
};
inline constexpr int kFailureKindCount = 8;

std::string_view name_of(FailureKind kind);  // "exception", "early exit", ...
// Throws Error(kInvalidArgument) if the name is unknown.
FailureKind failure_kind_of(std::string_view name);

struct FailureCause {
  FailureKind kind = FailureKind::kFailedCollective;
  int rank = -1;  // the rank that failed, global
  std::string host;
  std::string text;  // may have several lines
  double time = 0;   // seconds since 1970, by the clock of the rank that recorded it
  std::string site;  // "train.py:41": where the program of `rank` was; empty if unknown
  int witness = -1;  // the rank that recorded it, global; -1: the launcher

  // The text that exceptions and messages show.
  std::string describe() const;
  bool operator==(const FailureCause&) const = default;
};

void write(Writer& writer, const FailureCause& cause);
FailureCause read_cause(Reader& reader);

// The job has failed. `agreed`: all ranks report this cause. Otherwise another rank's cause may come first.
class JobFailure : public Error {
 public:
  JobFailure(FailureCause cause, bool agreed)
      : Error(ErrorKind::kAborted, cause.describe()), cause_(std::move(cause)), agreed_(agreed) {}
  const FailureCause& cause() const { return cause_; }
  bool agreed() const { return agreed_; }

 private:
  FailureCause cause_;
  bool agreed_;
};

}  // namespace sirtaki
