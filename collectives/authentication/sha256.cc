#include "authentication/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "base/bytes.h"

namespace sirtaki {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;
constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t read_word(std::span<const std::byte> bytes) {
  std::uint32_t word = 0;
  for (const std::byte byte : bytes.first(4)) word = word << 8 | std::to_integer<std::uint32_t>(byte);
  return word;
}

std::array<std::uint32_t, 64> schedule_of(std::span<const std::byte> block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = read_word(block.subspan(4 * i));
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  return w;
}

void add_block(State& state, std::span<const std::byte> block) {
  const auto w = schedule_of(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = std::exchange(g, std::exchange(f, std::exchange(e, d + t1)));
    d = std::exchange(c, std::exchange(b, std::exchange(a, t1 + t2)));
  }
  const State added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

void append_number(Bytes& bytes, std::uint64_t number, int size) {
  for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) bytes.push_back(static_cast<std::byte>(number >> shift));
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  Bytes padded(bytes.begin(), bytes.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % kBlock != kBlock - 8) padded.push_back(std::byte{0});
  append_number(padded, std::uint64_t{8} * bytes.size(), 8);
  State state = kStart;
  for (std::size_t at = 0; at < padded.size(); at += kBlock) add_block(state, std::span(padded).subspan(at, kBlock));
  Bytes digest;
  for (const std::uint32_t word : state) append_number(digest, word, 4);
  Digest result{};
  std::ranges::copy(digest, result.begin());
  return result;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes) {
  const Digest short_key = key.size() > kBlock ? sha256(key) : Digest();
  if (key.size() > kBlock) key = short_key;
  Bytes inner(kBlock, std::byte{0x36});
  Bytes outer(kBlock, std::byte{0x5c});
  for (std::size_t i = 0; i < key.size(); ++i) {
    inner[i] ^= key[i];
    outer[i] ^= key[i];
  }
  inner.insert(inner.end(), bytes.begin(), bytes.end());
  const Digest digest = sha256(inner);
  outer.insert(outer.end(), digest.begin(), digest.end());
  return sha256(outer);
}

bool are_equal(const Digest& a, std::span<const std::byte> b) {
  if (b.size() != a.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace sirtaki
