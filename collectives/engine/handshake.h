// The first thing that the ranks of a job do: see that all are there, run the same program, and tell where they are.
#pragma once

#include <string>
#include <vector>

#include "base/settings.h"
#include "transport/transport.h"

namespace sirtaki {

struct Introduction {
  std::string program;    // versions; must be equal on all ranks
  std::string settings;   // must be equal on all ranks
  std::string host_name;  // for messages
  std::string host_id;    // equal exactly on ranks that share a host
};

// That each rank sends rank 0, and that it gets from there.
inline constexpr std::uint32_t kMessagesOfHandshake = 1;

// This process's own host.
Introduction introduce(const std::string& program, const Settings& settings);

// Blocks until all ranks have arrived; gives all introductions by rank. Throws Error(kPrecondition) on every rank that
// arrived, naming who is missing after the start timeout, or who differs and in what.
std::vector<Introduction> shake_hands(Transport& transport, const Introduction& own, const Settings& settings);

}  // namespace sirtaki
