// Compares the requests of all ranks for one collective, and combines them. Pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agreement/messages.h"
#include "base/types.h"

namespace sirtaki {

// One request for each rank of the group, null for a rank that has joined.
using RequestsByRank = std::vector<std::shared_ptr<const Request>>;

// A table with one row for each rank's request and its call site. Of many tensors it shows a few, starting with tensor
// number `from`.
std::string table_of(const RequestsByRank& requests, std::span<const int> global_ranks, std::size_t from = 0);

// Empty if the requests are compatible; otherwise an error message with the first difference and the table above.
// `global_ranks` maps ranks of the group to ranks of the job.
std::string find_mismatch(const RequestsByRank& requests, std::span<const int> global_ranks);

// Does the agreement hold for this request of rank `rank` of the group, whose other fields are equal? The ranks' sizes
// may differ, but each rank must ask for the same as before.
bool has_part_of(const Agreement& agreement, const Request& request, int rank, int ranks);

// The agreed request, with the sizes that differ by rank. Call it only if find_mismatch() returned an empty string.
Agreement agree(const RequestsByRank& requests);

}  // namespace sirtaki
