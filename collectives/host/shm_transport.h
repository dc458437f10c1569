// Control messages through shared memory, for ranks of one host. A message wakes its receiver within microseconds, and
// costs no system call while the receiver is awake. Data transfers and everything else go through another transport.
// Transports that are split off use only that one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/host_bells.h"
#include "transport/transport.h"

namespace sirtaki {

// Collective over `inner`, whose ranks must all be on one host; blocks. `job_ranks`: the rank in the job of each rank
// of `inner`; it is the number of its bell. Returns `inner` itself, on all ranks, if a rank cannot get the memory;
// `why` then says what failed.
std::unique_ptr<Transport> make_shm_transport(std::unique_ptr<Transport> inner, std::shared_ptr<HostBells> bells,
                                              std::vector<int> job_ranks, std::string& why);

}  // namespace sirtaki
