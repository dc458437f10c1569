// A copy for results that are larger than the caches.
#pragma once

#include <cstddef>

namespace sirtaki {

// From this size on, a result does not stay in a core's cache until the program reads it.
inline constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

// memcpy() whose stores go past the caches, so that the processor need not read the memory before it is written.
void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace sirtaki
