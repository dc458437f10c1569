#include "transport/control_channel.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "transport/checksum.h"

namespace sirtaki {
namespace {

// Stands at the end of a message.
struct Seal {
  std::uint32_t number;
  std::uint32_t checksum;
};
static_assert(sizeof(Seal) == ControlChannel::kSealBytes);

}  // namespace

ControlChannel::ControlChannel(Transport& transport, std::vector<int> names, std::uint32_t before)
    : transport_(transport), names_(std::move(names)), peers_(names_.size(), Peer{before, before, false}) {}

void ControlChannel::send(int to, Bytes bytes) {
  if (bytes.size() > kLongestMessage - kSealBytes) {
    throw Error(ErrorKind::kAborted, "a control message of " + std::to_string(bytes.size()) + " bytes is too long");
  }
  std::uint32_t& sent = peers_[static_cast<std::size_t>(to)].sent;
  Seal seal{sent + 1, 0};
  seal.checksum = checksum(bytes, seal.number);
  const auto sealed = std::bit_cast<std::array<std::byte, kSealBytes>>(seal);
  bytes.insert(bytes.end(), sealed.begin(), sealed.end());
  transport_.send(to, std::move(bytes));
  ++sent;  // only now: if the transport throws, this rank's failure is the next message, and must not look like a gap
}

bool ControlChannel::receive(Message& message) {
  while (transport_.receive(message)) {
    if (peers_[static_cast<std::size_t>(message.from)].broken) continue;
    check(message);
    return true;
  }
  return false;
}

void ControlChannel::check(Message& message) {
  const std::size_t size = message.bytes.size();
  const std::uint32_t expected = ++peers_[static_cast<std::size_t>(message.from)].received;
  const std::string awaited = std::to_string(expected);
  Seal seal{};
  if (size >= kSealBytes) std::memcpy(&seal, message.bytes.data() + size - kSealBytes, kSealBytes);
  if (size < kSealBytes || seal.checksum != checksum(std::span(message.bytes).first(size - kSealBytes), seal.number)) {
    refuse(message.from, "message " + awaited + " arrived damaged: of its " + std::to_string(size) +
                             " bytes, some are missing or were overwritten");
  }
  if (seal.number > expected) {
    refuse(message.from, "message " + std::to_string(seal.number) + " came where message " + awaited +
                             " was due, which was lost or overtaken");
  }
  if (seal.number < expected) {
    refuse(message.from,
           "message " + std::to_string(seal.number) + " came again where message " + awaited + " was due");
  }
  message.bytes.resize(size - kSealBytes);
}

void ControlChannel::refuse(int from, const std::string& what) {
  const auto index = static_cast<std::size_t>(from);
  peers_[index].broken = true;
  throw Error(ErrorKind::kAborted,
              "the control messages from rank " + std::to_string(names_[index]) + " to rank " +
                  std::to_string(names_[static_cast<std::size_t>(transport_.rank())]) + " are broken: " + what +
                  ". The network or the MPI library between the two has failed, or memory was overwritten.");
}

}  // namespace sirtaki
