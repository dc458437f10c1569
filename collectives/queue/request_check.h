// Refuses wrong arguments that one rank can detect alone, before anything is sent.
#pragma once

#include "queue/submission.h"

namespace sirtaki {

[[noreturn]] void refuse_request(const Request& request, const std::string& why);

// `size`: number of ranks in the group. Throws Error(kInvalidArgument) with the value that is wrong.
void check_request(const Request& request, int size);

// Refuses tensors of one request that overlap in memory, since they could not be reduced correctly. An output may be
// its own input.
void check_addresses(const Request& request, const std::vector<Address>& addresses);

}  // namespace sirtaki
