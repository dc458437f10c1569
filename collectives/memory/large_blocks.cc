#include "memory/large_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace sirtaki {
namespace {

constexpr std::size_t kPage = std::size_t{4} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kUsesHugePages = 2 * kHugePage;  // smaller blocks would waste too much of the last page

std::size_t rounded(std::size_t bytes) {
  const std::size_t grain = bytes >= kUsesHugePages ? kHugePage : kPage;
  return (bytes + grain - 1) / grain * grain;
}

std::byte* map(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

// The kernel uses a huge page only at an aligned address.
LargeBlock map_huge(std::size_t size) {
  std::byte* const begin = map(size + kHugePage);
  const std::size_t head = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (head > 0) munmap(begin, head);
  if (head < kHugePage) munmap(begin + head + size, kHugePage - head);
  madvise(begin + head, size, MADV_HUGEPAGE);  // only advice: without huge pages the block is merely slower
  return {begin + head, size};
}

class FreeBlocks {
 public:
  // Null if no block fits. A block that is much larger stays for larger results.
  LargeBlock find(std::size_t size) {
    const auto fits = [size](const LargeBlock& block) { return block.size >= size && block.size <= size + size / 4; };
    const auto smaller = [&](const LargeBlock& a, const LargeBlock& b) {
      return fits(a) && (!fits(b) || a.size < b.size);
    };
    const auto best = std::min_element(blocks_.begin(), blocks_.end(), smaller);
    if (best == blocks_.end() || !fits(*best)) return {};
    const LargeBlock found = *best;
    blocks_.erase(best);
    bytes_ -= found.size;
    return found;
  }

  // Returns the blocks that must be unmapped.
  std::vector<LargeBlock> add(const LargeBlock& block) {
    blocks_.push_back(block);
    bytes_ += block.size;
    std::size_t count = 0;
    while (bytes_ > kMostKeptBytes) bytes_ -= blocks_[count++].size;
    const auto end = blocks_.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<LargeBlock> dropped(blocks_.begin(), end);
    blocks_.erase(blocks_.begin(), end);
    return dropped;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<LargeBlock> blocks_;  // the oldest first
  std::size_t bytes_ = 0;
};

// A forked child may inherit the mutex locked, for ever. So no thread waits for the mutex: a thread that does not get
// it maps or unmaps its block.
std::mutex& mutex() {
  static auto* const made = new std::mutex;
  return *made;
}

// Never destroyed: results may live longer than the core's other objects.
FreeBlocks& free_blocks() {
  static auto* const made = new FreeBlocks;
  return *made;
}

}  // namespace

LargeBlock take_large_block(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  if (const std::unique_lock lock(mutex(), std::try_to_lock); lock.owns_lock()) {
    if (const LargeBlock found = free_blocks().find(size); found.data != nullptr) return found;
  }
  return size >= kUsesHugePages ? map_huge(size) : LargeBlock{map(size), size};
}

void give_back_large_block(const LargeBlock& block) {
  std::vector<LargeBlock> dropped = {block};
  if (const std::unique_lock lock(mutex(), std::try_to_lock); lock.owns_lock()) dropped = free_blocks().add(block);
  for (const LargeBlock& each : dropped) munmap(each.data, each.size);
}

std::size_t kept_bytes() {
  const std::lock_guard lock(mutex());
  return free_blocks().bytes();
}

}  // namespace sirtaki
