#include "authentication/identification.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "authentication/sha256.h"
#include "base/error.h"

namespace sirtaki {
namespace {

constexpr std::string_view kProtocol = "SIRTAKI1";
constexpr std::size_t kIntroducerAt = 8;
static_assert(sizeof(Introducer) == 16);

Digest proof(std::span<const std::byte> key, std::string_view role, std::span<const std::byte> hello,
             std::span<const std::byte> nonce) {
  const auto role_bytes = std::as_bytes(std::span(role));
  Bytes all(role_bytes.begin(), role_bytes.end());
  all.insert(all.end(), hello.begin(), hello.end());
  all.insert(all.end(), nonce.begin(), nonce.end());
  return hmac_sha256(key, all);
}

}  // namespace

std::array<std::byte, kNonceBytes> new_nonce() {
  std::array<std::byte, kNonceBytes> nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw Error(ErrorKind::kAborted, "the system gives no random numbers");
  }
  return nonce;
}

Bytes make_hello(const Introducer& introducer) {
  Bytes hello(kHelloBytes);
  std::memcpy(hello.data(), kProtocol.data(), kProtocol.size());
  std::memcpy(hello.data() + kIntroducerAt, &introducer, sizeof(introducer));
  std::ranges::copy(new_nonce(), hello.end() - kNonceBytes);
  return hello;
}

std::optional<Introducer> read_hello(std::span<const std::byte> hello) {
  if (hello.size() != kHelloBytes || std::memcmp(hello.data(), kProtocol.data(), kProtocol.size()) != 0) return {};
  Introducer introducer;
  std::memcpy(&introducer, hello.data() + kIntroducerAt, sizeof(introducer));
  return introducer;
}

Bytes make_answer(std::span<const std::byte> key, std::span<const std::byte> hello) {
  const auto nonce = new_nonce();
  Bytes answer(nonce.begin(), nonce.end());
  const Digest own = proof(key, "accepting", hello, nonce);
  answer.insert(answer.end(), own.begin(), own.end());
  return answer;
}

bool is_answer(std::span<const std::byte> key, std::span<const std::byte> hello, std::span<const std::byte> answer) {
  return answer.size() == kAnswerBytes &&
         are_equal(proof(key, "accepting", hello, answer.first(kNonceBytes)), answer.subspan(kNonceBytes));
}

Bytes make_confirmation(std::span<const std::byte> key, std::span<const std::byte> hello,
                        std::span<const std::byte> answer) {
  const Digest own = proof(key, "connecting", hello, answer.first(kNonceBytes));
  return {own.begin(), own.end()};
}

bool is_confirmation(std::span<const std::byte> key, std::span<const std::byte> hello,
                     std::span<const std::byte> answer, std::span<const std::byte> confirmation) {
  return are_equal(proof(key, "connecting", hello, answer.first(kNonceBytes)), confirmation);
}

}  // namespace sirtaki
