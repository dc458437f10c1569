// A stream of bytes from one rank to another through shared memory, with one writer and one reader. No call blocks;
// each side calls again later.
//
// Why it is safe: each of the two positions only grows, and only one side stores it: with release, after that side has
// written or read the bytes. The other side loads the position with acquire before it uses those bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sirtaki {

class ByteRing {
 public:
  static constexpr std::size_t kCapacity = std::size_t{16} << 10;
  static constexpr std::size_t kEnds = std::size_t{2} * 128;
  // Bytes of memory that a ring needs, kEnds more than its capacity: zero at first, aligned to 128 bytes.
  static constexpr std::size_t kMemory = kCapacity + kEnds;

  // `capacity`: a power of two.
  explicit ByteRing(std::byte* memory, std::size_t capacity = kCapacity);

  // Writes as many bytes as there is room for, and returns their number.
  std::size_t push(std::span<const std::byte> bytes);
  // Reads as many bytes as are there, at most bytes.size(), and returns their number.
  std::size_t pop(std::span<std::byte> bytes);

  // The writer has more bytes than the ring has room for. The writer calls this and then pushes once more. So either
  // that push finds the room that the reader has made, or the reader sees that it must wake the writer.
  void set_blocked(bool blocked);
  // For the reader, after a pop.
  bool writer_blocked() const;

 private:
  struct alignas(128) End {
    std::atomic<std::uint64_t> position;
    std::atomic<std::uint32_t> blocked;
  };
  std::size_t checked(std::uint64_t bytes) const;
  std::atomic<std::uint64_t>& written() const { return ends_[0].position; }
  std::atomic<std::uint64_t>& read() const { return ends_[1].position; }

  End* ends_;
  std::byte* bytes_;
  std::size_t capacity_;
};

}  // namespace sirtaki
