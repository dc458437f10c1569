// A rank uses one GPU in a group. NCCL's communicators depend on it, and a second GPU is nearly always a program that
// forgot to choose its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "agreement/agreement.h"

namespace sirtaki {

class OneGpuCheck {
 public:
  explicit OneGpuCheck(std::size_t ranks) : used_(ranks, kHostDevice) {}

  // What breaks the rule, as a message for all ranks; empty if nothing does, and then what the ranks use is remembered.
  std::string check(const RequestsByRank& requests, std::span<const int> global_ranks);

 private:
  std::vector<int> used_;
};

}  // namespace sirtaki
