// The first bytes on a connection, by which each side proves to the other that it holds the job's secret, without
// sending it: the connecting rank sends a hello, the other answers with a proof over the hello and a nonce of its own,
// and the first confirms by another proof over both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"

namespace sirtaki {

struct Introducer {
  std::uint32_t generation = 0;
  std::int32_t from = -1;  // the connecting rank
  std::int32_t to = -1;    // the rank that it expects at the other end
  std::int32_t size = 0;   // of the job
  bool operator==(const Introducer&) const = default;
};

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kHelloBytes = 8 + 16 + kNonceBytes;
inline constexpr std::size_t kAnswerBytes = kNonceBytes + kProofBytes;

// Numbers that nobody can predict.
std::array<std::byte, kNonceBytes> new_nonce();

Bytes make_hello(const Introducer& introducer);
// Nothing if the bytes are no hello of this protocol. Proves nothing yet.
std::optional<Introducer> read_hello(std::span<const std::byte> hello);
Bytes make_answer(std::span<const std::byte> key, std::span<const std::byte> hello);
bool is_answer(std::span<const std::byte> key, std::span<const std::byte> hello, std::span<const std::byte> answer);
Bytes make_confirmation(std::span<const std::byte> key, std::span<const std::byte> hello,
                        std::span<const std::byte> answer);
bool is_confirmation(std::span<const std::byte> key, std::span<const std::byte> hello,
                     std::span<const std::byte> answer, std::span<const std::byte> confirmation);

}  // namespace sirtaki
