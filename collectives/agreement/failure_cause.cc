#include "agreement/failure_cause.h"

#include <algorithm>
#include <array>

#include "base/clock.h"

namespace sirtaki {
namespace {

constexpr std::array<std::string_view, kFailureKindCount> kNames = {
    "exception",           "signal",      "early exit", "killed", "lost connection", "failed collective",
    "refused negotiation", "passed limit"};

}  // namespace

std::string_view name_of(FailureKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

FailureKind failure_kind_of(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) {
    throw Error(ErrorKind::kInvalidArgument, "'" + std::string(name) + "' is not a kind of failure");
  }
  return static_cast<FailureKind>(found - kNames.begin());
}

// When a time limit passed, no rank is surely at fault; the text already names the missing rank.
std::string FailureCause::describe() const {
  const std::string who = "rank " + std::to_string(rank) + " on host " + host;
  const std::string when = time_of_day(time);
  if (kind == FailureKind::kPassedLimit) {
    return text + "\n  Found at " + when + "; the first one missing is " + who +
           (site.empty() ? "" : ", which waits in " + site) + ".";
  }
  return who + " failed at " + when + (site.empty() ? "" : " in " + site) + ": " + text;
}

void write(Writer& writer, const FailureCause& cause) {
  writer.number(static_cast<std::uint64_t>(cause.kind));
  writer.integer(cause.rank);
  writer.text(cause.host);
  writer.text(cause.text);
  writer.real(cause.time);
  writer.text(cause.site);
  writer.integer(cause.witness);
}

FailureCause read_cause(Reader& reader) {
  FailureCause cause;
  cause.kind = static_cast<FailureKind>(reader.below(kFailureKindCount));
  cause.rank = static_cast<int>(reader.integer());
  cause.host = reader.text();
  cause.text = reader.text();
  cause.time = reader.real();
  cause.site = reader.text();
  cause.witness = static_cast<int>(reader.integer());
  return cause;
}

}  // namespace sirtaki
