// Do the ranks ask for the same thing? A pure function of what they asked.
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

// One line for each rank that has asked: what for, and where from. Of many tensors it shows some, from number `from`
// on.
std::string table_of(const RequestsByRank& requests, std::span<const int> global_ranks, std::size_t from = 0);

// Empty when the requests fit together; otherwise what differs, and a table of every rank's request. `global_ranks` are
// the group's ranks as users know them.
std::string find_mismatch(const RequestsByRank& requests, std::span<const int> global_ranks);

// What the ranks have agreed on; only after find_mismatch() found none.
Agreement agree(const RequestsByRank& requests);

// "ranks 0, 2" or "rank 1".
std::string list_ranks(std::span<const int> ranks);

}  // namespace sirtaki
