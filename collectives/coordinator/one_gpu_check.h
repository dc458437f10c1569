// Checks that a rank uses one GPU only in a group. NCCL's communicators depend on that, and a second GPU nearly always
// means that the program forgot to select the GPU of its local rank.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "agreement/agreement.h"

namespace sirtaki {

class OneGpuCheck {
 public:
  explicit OneGpuCheck(std::size_t ranks) : used_(ranks, kHostDevice) {}

  // An error message if a rank uses another GPU than before; else empty, and the GPUs are remembered.
  std::string check(const RequestsByRank& requests, std::span<const int> global_ranks);

 private:
  std::vector<int> used_;
};

}  // namespace sirtaki
