// Bytes on a connection between two ranks: of a stranger, and of a rank that has identified itself.
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>

#include "base/error.h"
#include "sockets/connection.h"
#include "sockets/socket_frame.h"
#include "targets.h"

namespace sirtaki::fuzz {
namespace {

constexpr std::array<std::byte, 4> kKey{};
constexpr Introducer kOther{.generation = 1, .from = 1, .to = 0, .size = 2};

// Rank 0, which waits for 100 bytes with tag 5.
class Owner final : public ConnectionOwner {
 public:
  std::span<const std::byte> key() const override { return kKey; }
  Introducer self() const override { return {1, 0, -1, 2}; }
  std::span<std::byte> scratch() override { return scratch_; }
  void on_identified(Connection&) override { identified = true; }
  void on_closed(Connection&, const std::string& why) override { closed = why.empty() ? "closed" : why; }
  void on_message(int, std::uint64_t, Bytes) override {}
  FrameTarget* on_frame(int from, const SocketFrameHead& head) override {
    if (head.kind != SocketFrameKind::kData || head.length > 4096) return nullptr;
    return inbox.begin(from, head.tag, head.length);
  }

  Inbox inbox;
  bool identified = false;
  std::optional<std::string> closed;

 private:
  std::array<std::byte, 4096> scratch_{};
};

class Pair {
 public:
  Pair() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) throw Error(ErrorKind::kAborted, "");
    other_ = Descriptor(ends[1]);
    connection_ = std::make_unique<Connection>(owner_, Descriptor(ends[0]));
    owner_.inbox.post(receive_);
  }
  ~Pair() { connection_->close(""); }

  void send(std::span<const std::byte> bytes) {
    if (::send(other_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
    connection_->on_event();
  }

  void identify() {
    const Bytes hello = make_hello(kOther);
    send(hello);
    Bytes answer(kAnswerBytes);
    if (recv(other_.get(), answer.data(), answer.size(), 0) != static_cast<ssize_t>(answer.size())) std::abort();
    send(make_confirmation(kKey, hello, answer));
    if (!owner_.identified) std::abort();
  }

  void finish() {
    if (owner_.closed) throw Error(ErrorKind::kAborted, *owner_.closed);
  }

  const Owner& owner() const { return owner_; }

 private:
  Owner owner_;
  std::array<std::byte, 100> memory_{};
  Receive receive_{1, 5, memory_};
  Descriptor other_;
  std::unique_ptr<Connection> connection_;
};

// Without the key nothing is a proof.
void meet_stranger(std::span<const std::byte> bytes) {
  Pair pair;
  pair.send(bytes);
  if (pair.owner().identified) std::abort();
  pair.finish();
}

void read_frames(std::span<const std::byte> bytes) {
  Pair pair;
  pair.identify();
  pair.send(bytes.first(bytes.size() / 2));
  pair.send(bytes.subspan(bytes.size() / 2));
  pair.finish();
}

// Two transfers, of which rank 0 waits for one, a message, and the end.
std::vector<Bytes> frames() {
  Bytes all;
  std::uint32_t number = 0;
  const auto add = [&](SocketFrameKind kind, int tag, std::size_t length) {
    const auto head = encode({.generation = 1, .kind = kind, .group = 0, .length = length, .tag = tag}, ++number);
    all.insert(all.end(), head.begin(), head.end());
    all.resize(all.size() + length, std::byte{1});
  };
  add(SocketFrameKind::kData, 7, 50);
  add(SocketFrameKind::kData, 5, 100);
  add(SocketFrameKind::kMessage, 0, 30);
  add(SocketFrameKind::kMessage, 0, 0);
  add(SocketFrameKind::kAbort, 3, 0);
  add(SocketFrameKind::kLeave, 0, 0);
  return {all};
}

}  // namespace

std::vector<Target> socket_targets() {
  return {{"stranger's connection", {make_hello(kOther)}, meet_stranger}, {"rank's connection", frames(), read_frames}};
}

}  // namespace sirtaki::fuzz
