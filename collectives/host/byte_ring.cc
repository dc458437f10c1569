#include "host/byte_ring.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"

namespace sirtaki {

ByteRing::ByteRing(std::byte* memory, std::size_t capacity)
    : ends_(std::launder(reinterpret_cast<End*>(memory))), bytes_(memory + 2 * sizeof(End)), capacity_(capacity) {
  static_assert(2 * sizeof(End) + kCapacity == kMemory);
}

// The number of bytes in the ring. It follows from the other side's position, which that process may have damaged.
std::size_t ByteRing::checked(std::uint64_t bytes) const {
  if (bytes <= capacity_) return static_cast<std::size_t>(bytes);
  throw Error(ErrorKind::kAborted, "a ring of " + std::to_string(capacity_) + " bytes seems to hold " +
                                       std::to_string(bytes) + ": shared memory is damaged");
}

std::size_t ByteRing::push(std::span<const std::byte> bytes) {
  const std::uint64_t position = written().load(std::memory_order_relaxed);
  const std::size_t space = capacity_ - checked(position - read().load(std::memory_order_acquire));
  const std::size_t count = std::min(space, bytes.size());
  const std::size_t start = position & (capacity_ - 1);
  const std::size_t straight = std::min(count, capacity_ - start);
  if (straight > 0) std::memcpy(bytes_ + start, bytes.data(), straight);
  if (count > straight) std::memcpy(bytes_, bytes.data() + straight, count - straight);
  written().store(position + count, std::memory_order_release);
  return count;
}

std::size_t ByteRing::pop(std::span<std::byte> bytes) {
  const std::uint64_t position = read().load(std::memory_order_relaxed);
  const std::size_t available = checked(written().load(std::memory_order_acquire) - position);
  const std::size_t count = std::min(available, bytes.size());
  if (count == 0) return 0;
  const std::size_t start = position & (capacity_ - 1);
  const std::size_t straight = std::min(count, capacity_ - start);
  std::memcpy(bytes.data(), bytes_ + start, straight);
  if (count > straight) std::memcpy(bytes.data() + straight, bytes_, count - straight);
  read().store(position + count, std::memory_order_release);
  return count;
}

void ByteRing::set_blocked(bool blocked) {
  ends_[0].blocked.store(blocked ? 1 : 0);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool ByteRing::writer_blocked() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return ends_[0].blocked.load() != 0;
}

}  // namespace sirtaki
