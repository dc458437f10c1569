// A checksum that finds damaged and misplaced bytes, not attacks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sirtaki {

// Every step is reversible, so that a change within one word always changes the value before the last step.
inline std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 32);
}

// `number`: of the message among those between two ranks.
inline std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t number) {
  std::uint64_t hash = mix(bytes.size(), number);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), sizeof(std::uint64_t)))) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), std::min(bytes.size(), sizeof(word)));
    hash = mix(hash, word);
  }
  return static_cast<std::uint32_t>(mix(hash, 0));
}

}  // namespace sirtaki
