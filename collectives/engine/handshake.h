// The first exchange of a job: checks that all ranks are there and run the same program, and exchanges their hosts.
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

// Number of messages that each rank sends to rank 0, and receives from it.
inline constexpr std::uint32_t kMessagesOfHandshake = 1;

// The introduction of this process.
Introduction introduce(const std::string& program, const Settings& settings);

// Blocks until all ranks have arrived; returns all introductions by rank. Otherwise throws Error(kPrecondition) on
// every rank that has arrived. It names the ranks missing after the start timeout, or the ranks that differ, and in
// what.
std::vector<Introduction> shake_hands(Transport& transport, const Introduction& own, const Settings& settings);

}  // namespace sirtaki
