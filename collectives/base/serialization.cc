#include "base/serialization.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace sirtaki {
namespace {

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorKind::kAborted, "malformed control message: " + what +
                                       "; the ranks may run different builds of Sirtaki, or memory was overwritten");
}

}  // namespace

void Writer::number(std::uint64_t value) {
  while (value >= 0x80) {
    bytes_.push_back(static_cast<std::byte>(value | 0x80));
    value >>= 7;
  }
  bytes_.push_back(static_cast<std::byte>(value));
}

void Writer::integer(std::int64_t value) {
  number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

void Writer::real(double value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 0; i < 8; ++i, bits >>= 8) bytes_.push_back(static_cast<std::byte>(bits));
}

void Writer::text(std::string_view value) {
  number(value.size());
  const auto* begin = reinterpret_cast<const std::byte*>(value.data());
  bytes_.insert(bytes_.end(), begin, begin + value.size());
}

void Writer::integers(std::span<const std::int64_t> values) {
  number(values.size());
  for (const std::int64_t value : values) integer(value);
}

std::span<const std::byte> Reader::take(std::size_t count) {
  if (count > rest_.size()) {
    malformed(std::to_string(count) + " bytes announced, " + std::to_string(rest_.size()) + " left");
  }
  const auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

std::uint64_t Reader::number() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = std::to_integer<std::uint64_t>(take(1)[0]);
    if (shift == 63 && byte > 1) break;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  malformed("a number of more than 64 bits");
}

std::int64_t Reader::integer() {
  const std::uint64_t value = number();
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

double Reader::real() {
  std::uint64_t bits = 0;
  const auto bytes = take(8);
  for (int i = 7; i >= 0; --i) bits = (bits << 8) | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  return std::bit_cast<double>(bits);
}

std::string Reader::text() {
  const auto bytes = take(length());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::int64_t> Reader::integers() {
  std::vector<std::int64_t> values(length());
  for (std::int64_t& value : values) value = integer();
  return values;
}

std::size_t Reader::length() {
  const std::uint64_t count = number();
  if (count > rest_.size()) {
    malformed("a list of " + std::to_string(count) + " items in " + std::to_string(rest_.size()) + " bytes");
  }
  return static_cast<std::size_t>(count);
}

std::uint8_t Reader::below(int end) {
  const std::uint64_t value = number();
  if (value >= static_cast<std::uint64_t>(end)) malformed("unknown code " + std::to_string(value));
  return static_cast<std::uint8_t>(value);
}

void Reader::finish() const {
  if (!rest_.empty()) malformed(std::to_string(rest_.size()) + " bytes too many");
}

}  // namespace sirtaki
