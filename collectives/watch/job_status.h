// Collects the status of all ranks when a program asks for it. Runs on rank 0 of the job. Pure logic; the time is an
// argument.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/coordinator.h"

namespace sirtaki {

class JobStatus {
 public:
  explicit JobStatus(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  // If a status is wanted: asks all ranks once, then sends the answers when all are there or the time is over.
  void look(Coordinator& coordinator, Clock::time_point now);

 private:
  std::string compose(const Coordinator& coordinator) const;

  std::vector<std::string> hosts_;  // by rank
  std::optional<Clock::time_point> asked_at_;
};

}  // namespace sirtaki
