// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), by which two processes prove to each other that they hold the job's
// secret. Own code, because the core links no library that has it; used once for each connection.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace sirtaki {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> bytes);
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes);

// In a time that does not depend on where the digests differ.
bool are_equal(const Digest& a, std::span<const std::byte> b);

}  // namespace sirtaki
