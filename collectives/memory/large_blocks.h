// Large blocks of host memory, kept for later use: a page's first use costs as much time as several copies of it.
// A block belongs to one user from take() to give_back(), so two live results never share memory.
#pragma once

#include <cstddef>

namespace sirtaki {

// Smaller memory comes from malloc(), which gives back a heap of many such blocks that were freed together.
inline constexpr std::size_t kLargeBlock = std::size_t{64} << 10;
// All free blocks of the process together; the oldest are unmapped first.
inline constexpr std::size_t kMostKeptBytes = std::size_t{256} << 20;

struct LargeBlock {
  std::byte* data;
  std::size_t size;
};

// A block of at least `bytes`, aligned to pages. Throws std::bad_alloc. Any thread may call these.
LargeBlock take_large_block(std::size_t bytes);
void give_back_large_block(const LargeBlock& block);
// Of free blocks.
std::size_t kept_bytes();

}  // namespace sirtaki
