// What is wrong with a call that one rank can see by itself, before anything is sent.
#pragma once

#include "queue/submission.h"

namespace sirtaki {

// `size` and `rank`: of the group. Throws Error(kInvalidArgument) with the value that is wrong.
void check_request(const Request& request, int size);

// Memory that overlaps within one request, other than an output over its own input, could not be reduced right.
void check_addresses(const Request& request, const std::vector<Address>& addresses);

}  // namespace sirtaki
