// Bytes of messages and of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sirtaki {

// Of a message.
using Bytes = std::vector<std::byte>;

inline constexpr std::size_t kCacheLine = 64;

// Where an element of `size` bytes lies.
inline std::byte* at(void* base, std::int64_t index, std::size_t size) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(size);
}
inline const std::byte* at(const void* base, std::int64_t index, std::size_t size) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size);
}

}  // namespace sirtaki
