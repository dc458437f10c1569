// Writes and reads the bytes of control messages: integers of variable length (LEB128), strings and lists preceded by
// their length. The reader checks every length against the remaining bytes, since a message may be damaged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace sirtaki {

class Writer {
 public:
  void number(std::uint64_t value);
  void integer(std::int64_t value);  // zigzag, so that small negative numbers stay short
  void real(double value);
  void text(std::string_view value);
  void integers(std::span<const std::int64_t> values);
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Throws Error(kAborted) if Writer cannot have written these bytes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint64_t number();
  std::int64_t integer();
  double real();
  std::string text();
  std::vector<std::int64_t> integers();
  // The length of a list whose items take at least one byte each.
  std::size_t length();
  // A number below `end`, for enumerations.
  std::uint8_t below(int end);
  // All bytes that are left.
  std::span<const std::byte> rest() { return take(rest_.size()); }
  void finish() const;  // throws if bytes are left

 private:
  std::span<const std::byte> take(std::size_t count);
  std::span<const std::byte> rest_;
};

}  // namespace sirtaki
