// Ranks as threads of one process: for tests, and for a job of one process.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace sirtaki {

// One transport for each rank; they share a mailbox and may be used from one thread each.
std::vector<std::unique_ptr<Transport>> make_loopback(int size);

}  // namespace sirtaki
