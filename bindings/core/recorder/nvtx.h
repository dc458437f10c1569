// NVTX ranges of this process's collectives, by a library that is found at run time.
#pragma once

#include <string>
#include <vector>

namespace sirtaki {

// Marks batches, waits and steps from now on, through the first of these libraries that has NVTX's functions. Without
// any it marks no longer. Returns that library; "" if there is none. Throws Error before init().
std::string mark_ranges(const std::vector<std::string>& libraries);

}  // namespace sirtaki
