#include "watch/job_status.h"

#include <numeric>

#include "base/time_limits.h"

namespace sirtaki {

void JobStatus::look(Coordinator& coordinator, Clock::time_point now) {
  if (!coordinator.job_status_wanted()) return;
  if (!asked_at_) {
    std::vector<int> all(hosts_.size());
    std::iota(all.begin(), all.end(), 0);
    coordinator.ask(all);
    asked_at_ = now;
  } else if (coordinator.reports().size() == hosts_.size() || now - *asked_at_ > kReportsOfAllRanks) {
    coordinator.set_job_status(compose(coordinator));
    asked_at_.reset();
  }
}

std::string JobStatus::compose(const Coordinator& coordinator) const {
  static const RankStatus silent{"which does not answer: dead or stopped, or its engine is blocked", ""};
  std::string text;
  for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
    const auto answer = coordinator.reports().find(static_cast<int>(rank));
    const RankStatus& report = answer == coordinator.reports().end() ? silent : answer->second;
    text += (rank == 0 ? "" : "\n") + section_of(static_cast<int>(rank), hosts_[rank], report);
  }
  return text;
}

}  // namespace sirtaki
