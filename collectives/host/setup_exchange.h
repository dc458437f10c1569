// Exchanges of short texts and numbers while a plane is made, through rank 0. All calls block.
#pragma once

#include <cstddef>
#include <string>

#include "transport/transport.h"

namespace sirtaki {

// Rank 0 sends to all others, and each of them receives. Texts are cut at some hundred bytes.
void send_text_to_all(Transport& transport, const std::string& text);
std::string receive_text(Transport& transport, int rank);

// Collective: the failure of the lowest rank that has one, the same text on all ranks; empty if no rank has failed.
// `own`: this rank's failure; empty if it has none.
std::string first_failure(Transport& transport, const std::string& own);

// Collective: the minimum over all ranks.
std::size_t least_of_all(Transport& transport, std::size_t own);

}  // namespace sirtaki
