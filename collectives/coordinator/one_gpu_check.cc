#include "coordinator/one_gpu_check.h"

namespace sirtaki {

std::string OneGpuCheck::check(const RequestsByRank& requests, std::span<const int> global_ranks) {
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank] == nullptr || requests[rank]->tensors.empty()) continue;
    const int device = requests[rank]->tensors[0].device;
    if (device == kHostDevice) continue;
    if (used_[rank] != kHostDevice && used_[rank] != device) {
      return "'" + requests[rank]->title() + "' cannot run: rank " + std::to_string(global_ranks[rank]) +
             " has it on " + name_of_device(device) + " after tensors on " + name_of_device(used_[rank]) +
             ", and a rank uses one GPU in a process set." + table_of(requests, global_ranks) +
             "\n  Choose the GPU once, as by torch.cuda.set_device(hvd.local_rank()).";
    }
  }
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    if (requests[rank] == nullptr || requests[rank]->tensors.empty()) continue;
    const int device = requests[rank]->tensors[0].device;
    if (device != kHostDevice) used_[rank] = device;
  }
  return "";
}

}  // namespace sirtaki
