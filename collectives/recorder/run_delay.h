// How long the kernel let a thread wait for a core while it was ready to run.
#pragma once

#include <cstdint>

namespace sirtaki {

// Of the calling thread since its start, in nanoseconds; -1 if the kernel does not say. A system call.
std::int64_t run_delay();

}  // namespace sirtaki
