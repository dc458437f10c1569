// A stream of bytes from one rank to another through shared memory. One writer, one reader, each polled by its own
// thread; neither waits here.
//
// Why it is safe: each of the two positions only grows and has one writer, who stores it with release after he has
// touched the bytes; the other loads it with acquire before he does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sirtaki {

class ByteRing {
 public:
  static constexpr std::size_t kCapacity = std::size_t{16} << 10;
  // Of the memory, which is zero at first and aligned to 128 bytes.
  static constexpr std::size_t kMemory = kCapacity + 2 * 128;

  explicit ByteRing(std::byte* memory);

  // As many bytes as there is room for; how many that were.
  std::size_t push(std::span<const std::byte> bytes);
  // As many bytes as have come; how many that were.
  std::size_t pop(std::span<std::byte> bytes);

  // The writer has more than there is room for. Said before its last push, so that either that push finds the room that
  // the reader makes, or the reader sees that it must wake the writer.
  void set_blocked(bool blocked);
  // The reader, after a pop.
  bool writer_blocked() const;

 private:
  struct alignas(128) End {
    std::atomic<std::uint64_t> position;
    std::atomic<std::uint32_t> blocked;
  };
  static std::size_t checked(std::uint64_t bytes);
  std::atomic<std::uint64_t>& written() const { return ends_[0].position; }
  std::atomic<std::uint64_t>& read() const { return ends_[1].position; }

  End* ends_;
  std::byte* bytes_;
};

}  // namespace sirtaki
