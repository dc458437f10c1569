// The head of a frame. A connection carries frames: a head, then the bytes of one message or one transfer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sirtaki {

enum class SocketFrameKind : std::uint32_t {
  kMessage = 1,  // a control message
  kData = 2,     // a transfer
  kLeave = 3,    // the sender leaves normally, so that the end of this connection is no failure
  kAbort = 4,    // a rank has ended the job; `group` is this rank, `tag` the exit code
};

struct SocketFrameHead {
  std::uint32_t generation = 0;  // of the ranks' table, so that nothing of an earlier table is taken
  SocketFrameKind kind = SocketFrameKind::kMessage;
  std::uint64_t group = 0;
  std::uint64_t length = 0;  // bytes after the head
  std::int32_t tag = 0;
  std::uint32_t check = 0;  // of the fields above and of the frame's number on its connection
};

inline constexpr std::size_t kSocketFrameBytes = 32;
static_assert(sizeof(SocketFrameHead) == kSocketFrameBytes, "it is sent as it lies in memory");

using SocketFrameBytes = std::array<std::byte, kSocketFrameBytes>;

// `number`: of the frame on its connection and in its direction, from 1.
SocketFrameBytes encode(SocketFrameHead head, std::uint32_t number);
// Throws Error(kAborted) if the head is damaged, out of order, of another generation, or too long. `sender`: for
// errors.
SocketFrameHead decode_head(std::span<const std::byte> bytes, std::uint32_t generation, std::uint32_t number,
                            const std::string& sender);

}  // namespace sirtaki
