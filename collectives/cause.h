// Why a job cannot go on: recorded once, by the rank that met it first, and then the same on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "error.h"
#include "wire.h"

namespace sirtaki {

// In the order of their names; append, never reorder.
enum class CauseKind : std::uint8_t {
  kException,
  kSignal,
  kEarlyExit,
  kKilled,
  kLostConnection,
  kFailedCollective,
  kRefusedNegotiation,
  kPassedLimit,
};
inline constexpr int kCauseKindCount = 8;

std::string_view name_of(CauseKind kind);  // "exception", "early exit", ...
// Throws Error(kInvalidArgument) for what is no name of a kind.
CauseKind cause_kind_of(std::string_view name);

struct Cause {
  CauseKind kind = CauseKind::kFailedCollective;
  int rank = -1;  // whose failure it is, global
  std::string host;
  std::string text;  // may have several lines
  double time = 0;   // seconds since 1970, by the clock of whoever recorded it
  std::string site;  // "train.py:41", where the program of `rank` was; empty if that is not known
  int witness = -1;  // the rank that recorded it, global; -1: the launcher

  // As exceptions and messages show it.
  std::string describe() const;
  bool operator==(const Cause&) const = default;
};

void write(Writer& writer, const Cause& cause);
Cause read_cause(Reader& reader);

// The job has failed. `agreed`: all ranks are told this cause; otherwise another rank may have been first.
class JobFailure : public Error {
 public:
  JobFailure(Cause cause, bool agreed)
      : Error(ErrorKind::kAborted, cause.describe()), cause_(std::move(cause)), agreed_(agreed) {}
  const Cause& cause() const { return cause_; }
  bool agreed() const { return agreed_; }

 private:
  Cause cause_;
  bool agreed_;
};

}  // namespace sirtaki
