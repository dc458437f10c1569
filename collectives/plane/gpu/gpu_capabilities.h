// What the ranks of a group can do with their GPUs, and what follows from that for all of them alike.
#pragma once

#include <string>
#include <vector>

#include "base/task.h"
#include "plane/nccl/nccl_library.h"
#include "transport/transport.h"

namespace sirtaki {

// One rank's GPU and what goes with it.
struct GpuCard {
  std::string identity;       // as Device::identity()
  std::string nccl;           // version; empty: it has none
  std::string lacks_nccl;     // why
  std::string lacks_kernels;  // why; empty if it has them
  bool mpi = false;           // its MPI takes GPU memory
};

struct GpuCapabilities {
  bool nccl = false;
  bool kernels = false;
  bool mpi = false;
  std::string why_not;  // neither NCCL nor told to do without
  std::string refusal;  // NCCL was asked for and cannot be had
  NcclUniqueId id{};    // made by rank 0
};

// `wish`: as Settings::gpu_operations. A function of its arguments alone.
GpuCapabilities common_gpu_capabilities(const std::vector<GpuCard>& cards, const std::string& wish);

// Every rank of the group calls it with its own card; all get the same. `id` is rank 0's.
Task exchange_cards(Transport& transport, const GpuCard& own, const std::string& wish, const NcclUniqueId& id,
                    GpuCapabilities& agreement);

}  // namespace sirtaki
