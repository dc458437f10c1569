// What reads bytes that another process or a file gave. Each target takes any bytes: it may throw Error, and nothing
// else may happen.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace sirtaki::fuzz {

struct Target {
  std::string name;
  std::vector<Bytes> seeds;  // what is right
  void (*read)(std::span<const std::byte> bytes);
};

std::vector<Target> all_targets();
// Those of the connections between ranks without MPI, which are among all.
std::vector<Target> socket_targets();

}  // namespace sirtaki::fuzz
