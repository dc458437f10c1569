// Chooses the requests of each batch. A pure function of the requests and the threshold, so that it can be tested and
// simulated alone. Only the coordinator calls it; the verdict sends its result to the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace sirtaki {

std::int64_t bytes_of(const Request& request);

// Indices into `ready`, batch by batch. Allreduces fuse when dtype, op, scale and device are equal, broadcasts when the
// root is too; small requests of another verb on the host do, too. A batch has at most `threshold` bytes, or one
// request. Every other request is a batch of its own. Batches are ordered by their first request.
std::vector<std::vector<std::size_t>> plan(std::span<const Request* const> ready, std::int64_t threshold);

}  // namespace sirtaki
