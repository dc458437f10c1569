// Control messages that are lost, overtaken, doubled or damaged on the way are noticed, and said what happened.
#include "transport/control_channel.h"

#include <doctest/doctest.h>

#include <random>

#include "base/error.h"
#include "expect.h"
#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

const std::vector<int> kNames = {4, 7, 9};

Bytes bytes_of(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 3 + size);
  return bytes;
}

// What rank 1 (called 7) sent to rank 0 (called 4), to be sent on in another way.
class Wire {
 public:
  Wire() : transports_(make_loopback(3)), sender_(*transports_[1], kNames), receiver_(*transports_[0], kNames) {}

  Bytes sealed(std::size_t size) {
    sender_.send(0, bytes_of(size));
    Message message;
    CHECK_MESSAGE(transports_[0]->receive(message), "nothing was sent");
    return message.bytes;
  }
  void pass_on(Bytes bytes) { transports_[1]->send(0, std::move(bytes)); }
  void comes(std::size_t size, int from = 1) {
    Message message;
    CHECK_MESSAGE(receiver_.receive(message), "it came as it was sent");
    CHECK_MESSAGE(message.from == from, "it came as it was sent");
    CHECK_MESSAGE(message.bytes == bytes_of(size), "it came as it was sent");
  }
  void is_refused(const std::string& why) {
    Message message;
    const auto error = expect_throw<Error>([&] { receiver_.receive(message); }, why);
    CHECK(error.kind() == ErrorKind::kAborted);
    check_contains(error.what(), "the control messages from rank 7 to rank 4 are broken: " + why);
  }
  void nothing_comes() {
    Message message;
    CHECK_MESSAGE(!receiver_.receive(message), "something came");
  }
  Transport& of(int rank) { return *transports_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<Transport>> transports_;
  ControlChannel sender_;
  ControlChannel receiver_;
};

TEST_CASE("Complete messages arrive in order") {
  Wire wire;
  for (const std::size_t size : {0, 1, 7, 8, 9, 100'000}) {
    wire.pass_on(wire.sealed(size));
    wire.comes(size);
  }
  wire.nothing_comes();
}

TEST_CASE("A lost message is detected when the next message arrives") {
  Wire wire;
  wire.pass_on(wire.sealed(3));
  wire.comes(3);
  wire.sealed(4);
  wire.pass_on(wire.sealed(5));
  wire.is_refused("message 3 came where message 2 was due");
}

TEST_CASE("A reordered or repeated message is detected") {
  Wire overtaken;
  const Bytes first = overtaken.sealed(3);
  overtaken.pass_on(overtaken.sealed(4));
  overtaken.pass_on(first);
  overtaken.is_refused("message 2 came where message 1 was due");
  overtaken.nothing_comes();

  Wire doubled;
  const Bytes message = doubled.sealed(3);
  doubled.pass_on(message);
  doubled.pass_on(message);
  doubled.comes(3);
  doubled.is_refused("message 1 came again where message 2 was due");
}

TEST_CASE("A damaged message is detected") {
  std::mt19937 random(1);
  for (const std::size_t size : {0, 1, 8, 30, 1000}) {
    Wire lengths;
    const Bytes good = lengths.sealed(size);
    for (int round = 0; round < 300; ++round) {
      Wire wire;
      Bytes bad = wire.sealed(size);
      if (round % 3 == 0) {
        bad.resize(random() % bad.size());
      } else {
        for (int i = 0; i < round % 3; ++i) bad[random() % bad.size()] ^= static_cast<std::byte>(1U << (random() % 8));
      }
      if (bad == good) continue;
      wire.pass_on(bad);
      wire.is_refused("message 1 arrived damaged");
    }
  }
}

// After a fault the others are heard still, so that they can be told.
TEST_CASE("Messages of the other ranks still arrive after one rank's were damaged") {
  Wire wire;
  wire.pass_on(Bytes(3));
  wire.is_refused("message 1 arrived damaged");
  ControlChannel other(wire.of(2), kNames);
  wire.pass_on(Bytes(3));
  wire.nothing_comes();
  other.send(0, bytes_of(6));
  wire.comes(6, 2);
}

}  // namespace
}  // namespace sirtaki::testing
