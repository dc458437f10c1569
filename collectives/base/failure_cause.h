// Why a job cannot go on: recorded once, by the rank that met it first, and then the same on every rank.
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
// Throws Error(kInvalidArgument) for what is no name of a kind.
FailureKind failure_kind_of(std::string_view name);

struct FailureCause {
  FailureKind kind = FailureKind::kFailedCollective;
  int rank = -1;  // whose failure it is, global
  std::string host;
  std::string text;  // may have several lines
  double time = 0;   // seconds since 1970, by the clock of whoever recorded it
  std::string site;  // "train.py:41", where the program of `rank` was; empty if that is not known
  int witness = -1;  // the rank that recorded it, global; -1: the launcher

  // As exceptions and messages show it.
  std::string describe() const;
  bool operator==(const FailureCause&) const = default;
};

void write(Writer& writer, const FailureCause& cause);
FailureCause read_cause(Reader& reader);

// The job has failed. `agreed`: all ranks are told this cause; otherwise another rank may have been first.
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
