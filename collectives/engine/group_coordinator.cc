#include "engine/group_coordinator.h"

#include <utility>

namespace sirtaki {
namespace {

constexpr std::chrono::milliseconds kLookInterval{250};

}  // namespace

GroupCoordinator::GroupCoordinator(std::vector<int> ranks, std::vector<std::string> hosts, const Settings& settings)
    : ranks_(std::move(ranks)),
      hosts_(std::move(hosts)),
      coordinator_(ranks_, settings),
      stalls_(ranks_, hosts_, settings),
      job_status_(hosts_),
      fusion_threshold_(settings.fusion_threshold) {}

std::vector<std::string> GroupCoordinator::watch(Clock::time_point now) {
  // Report the end of a stall at once, since the program may soon end.
  const bool resumed = !coordinator_.has_pending();
  if (now < next_look_ && !resumed) return {};
  next_look_ = now + kLookInterval;
  job_status_.look(coordinator_, now);
  if (coordinator_.job_status_wanted()) return {};  // the job status and the stall watch both ask the ranks
  StallWatch::Report report = stalls_.look(coordinator_, now);
  // A rank may be late because a verdict was lost. The next verdict's number shows it that loss.
  if (!report.lines.empty()) coordinator_.send_heartbeat();
  if (!report.ask.empty()) coordinator_.ask(report.ask);
  if (!report.abort_cause.empty()) {
    const auto missing = static_cast<std::size_t>(report.missing);
    coordinator_.fail({FailureKind::kPassedLimit, ranks_[missing], hosts_[missing], report.abort_cause, wall_clock(),
                       report.site, ranks_[0]});
  }
  return report.lines;
}

}  // namespace sirtaki
