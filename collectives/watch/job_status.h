// How all ranks of a job stand, when somebody asks: gathered by the coordinator of all ranks. Pure logic over times
// that are passed in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/coordinator.h"

namespace sirtaki {

class JobStatus {
 public:
  explicit JobStatus(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  // While one is wanted: asks the ranks once, and tells when all have answered or have had their time.
  void look(Coordinator& coordinator, Clock::time_point now);

 private:
  std::string compose(const Coordinator& coordinator) const;

  std::vector<std::string> hosts_;  // by rank
  std::optional<Clock::time_point> asked_at_;
};

}  // namespace sirtaki
