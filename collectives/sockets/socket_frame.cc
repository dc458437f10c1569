#include "sockets/socket_frame.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "transport/checksum.h"
#include "transport/transport.h"

namespace sirtaki {
namespace {

static_assert(std::endian::native == std::endian::little, "all hosts of a job must store numbers alike");

constexpr std::uint64_t kLongestData = std::uint64_t{1} << 40;

[[noreturn]] void refuse(const std::string& sender, const std::string& what) {
  throw Error(ErrorKind::kAborted, "the connection from " + sender + " is broken: " + what);
}

}  // namespace

SocketFrameBytes encode(SocketFrameHead head, std::uint32_t number) {
  head.check = 0;
  head.check = checksum(std::bit_cast<SocketFrameBytes>(head), number);
  return std::bit_cast<SocketFrameBytes>(head);
}

SocketFrameHead decode_head(std::span<const std::byte> bytes, std::uint32_t generation, std::uint32_t number,
                            const std::string& sender) {
  SocketFrameBytes raw{};
  std::memcpy(raw.data(), bytes.data(), raw.size());
  const auto head = std::bit_cast<SocketFrameHead>(raw);
  std::memset(raw.data() + offsetof(SocketFrameHead, check), 0, sizeof(head.check));
  if (head.check != checksum(raw, number)) refuse(sender, "frame " + std::to_string(number) + " is damaged or missing");
  if (head.generation != generation) {
    refuse(sender, "a frame of generation " + std::to_string(head.generation) + " came in generation " +
                       std::to_string(generation));
  }
  const auto kind = static_cast<std::uint32_t>(head.kind);
  if (kind < 1 || kind > 4) refuse(sender, "a frame of the unknown kind " + std::to_string(kind));
  const std::uint64_t longest = head.kind == SocketFrameKind::kData      ? kLongestData
                                : head.kind == SocketFrameKind::kMessage ? kLongestMessage
                                                                         : 0;
  if (head.length > longest) refuse(sender, "a frame of " + std::to_string(head.length) + " bytes");
  return head;
}

}  // namespace sirtaki
