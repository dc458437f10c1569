// What each rank of a group can do with its GPU, and the common choice that follows for all ranks.
#pragma once

#include <string>
#include <vector>

#include "base/task.h"
#include "plane/nccl/nccl_library.h"
#include "transport/transport.h"

namespace sirtaki {

// One rank's GPU and its libraries.
struct GpuCard {
  std::string identity;       // as Device::identity()
  std::string nccl;           // version; empty without NCCL
  std::string lacks_nccl;     // why there is no NCCL
  std::string lacks_kernels;  // why there are no kernels; empty if they work
  bool mpi = false;           // its MPI accepts GPU memory
};

struct GpuCapabilities {
  bool nccl = false;
  bool kernels = false;
  bool mpi = false;
  std::string why_not;  // why NCCL is not used, if no setting forbids it
  std::string refusal;  // error message if NCCL was requested and is missing
  NcclUniqueId id{};    // made by rank 0
};

// `wish`: as Settings::gpu_operations. A pure function, so that all ranks get the same result.
GpuCapabilities common_gpu_capabilities(const std::vector<GpuCard>& cards, const std::string& wish);

// Collective over the group: exchanges the ranks' cards and gives all the same result. `id` comes from rank 0.
Task exchange_cards(Transport& transport, const GpuCard& own, const std::string& wish, const NcclUniqueId& id,
                    GpuCapabilities& agreement);

}  // namespace sirtaki
