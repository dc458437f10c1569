// What ranks tell each other while a plane is made, by way of rank 0. All calls block.
#pragma once

#include <cstddef>
#include <string>

#include "transport/transport.h"

namespace sirtaki {

// Rank 0 tells all others; they hear it. Texts are cut at some hundred bytes.
void send_text_to_all(Transport& transport, const std::string& text);
std::string receive_text(Transport& transport, int rank);

// Collective: what failed on the lowest rank where something did (there `own` is not empty), the same on all ranks;
// empty if nothing did.
std::string first_failure(Transport& transport, const std::string& own);

// Collective: the least of what the ranks give.
std::size_t least_of_all(Transport& transport, std::size_t own);

}  // namespace sirtaki
