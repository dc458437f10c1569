// Control messages through shared memory, for ranks of one host: they wake the process that they are for, within
// microseconds, and cost no system call while it is awake. Transfers of data and everything else go through another
// transport.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/host_bells.h"
#include "transport/transport.h"

namespace sirtaki {

// Collective over `inner`, whose ranks must all be on one host; blocks. `job_ranks`: of its ranks in the job, which
// number the bells. Gives `inner` back, on all ranks, if one could not have the memory; `why` then says what failed.
std::unique_ptr<Transport> make_shm_transport(std::unique_ptr<Transport> inner, std::shared_ptr<HostBells> bells,
                                              std::vector<int> job_ranks, std::string& why);

}  // namespace sirtaki
