// TCP connections between ranks: who may connect, what a connection carries, and what its end means.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "authentication/identification.h"
#include "authentication/sha256.h"
#include "engine_jobs.h"
#include "expect.h"
#include "fabric/socket_fabric.h"
#include "socket_jobs.h"
#include "sockets/socket_frame.h"

namespace sirtaki::testing {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST_CASE("SHA-256 gives the digests of FIPS 180-4's examples") {
  CHECK(hex(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256(bytes_of("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("HMAC-SHA256 gives the digests of RFC 4231's test cases") {
  CHECK(hex(hmac_sha256(bytes_of(std::string(20, '\x0b')), bytes_of("Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string text = "Test Using Larger Than Block-Size Key - Hash Key First";
  CHECK(hex(hmac_sha256(bytes_of(std::string(131, '\xaa')), bytes_of(text))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("A frame that is damaged, missing or of another generation is refused") {
  const SocketFrameHead head{.generation = 2, .kind = SocketFrameKind::kData, .group = 7, .length = 100, .tag = 5};
  const SocketFrameBytes bytes = encode(head, 3);
  CHECK(decode_head(bytes, 2, 3, "rank 1").length == 100);
  check_error(ErrorKind::kAborted, "rank 1 is broken: frame 4 is damaged or missing",
              [&] { decode_head(bytes, 2, 4, "rank 1"); });
  check_error(ErrorKind::kAborted, "a frame of generation 2 came in generation 3",
              [&] { decode_head(bytes, 3, 3, "rank 1"); });
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    SocketFrameBytes damaged = bytes;
    damaged[i] ^= std::byte{1};
    check_error(ErrorKind::kAborted, "damaged", [&] { decode_head(damaged, 2, 3, "rank 1"); });
  }
  SocketFrameHead long_message = head;
  long_message.kind = SocketFrameKind::kMessage;
  long_message.length = kLongestMessage + 1;
  check_error(ErrorKind::kAborted, "a frame of 1073741825 bytes",
              [&] { decode_head(encode(long_message, 3), 2, 3, "rank 1"); });
}

TEST_CASE("Only an end with the key proves itself") {
  const std::array<std::byte, 3> key{};
  const std::array<std::byte, 3> other{std::byte{1}};
  const Bytes hello = make_hello({.generation = 1, .from = 0, .to = 1, .size = 2});
  const Bytes answer = make_answer(key, hello);
  CHECK(is_answer(key, hello, answer));
  CHECK(!is_answer(other, hello, answer));
  CHECK(!is_answer(key, make_hello({.generation = 1, .from = 0, .to = 1, .size = 2}), answer));
  const Bytes confirmation = make_confirmation(key, hello, answer);
  CHECK(is_confirmation(key, hello, answer, confirmation));
  CHECK(!is_confirmation(other, hello, answer, confirmation));
  CHECK(!is_confirmation(key, hello, make_answer(key, hello), confirmation));
  CHECK(!is_confirmation(key, hello, answer, Bytes(answer.end() - kProofBytes, answer.end())));
}

// ---- between two ranks ----

void wait_until(const std::function<bool()>& condition) {
  while (!condition()) std::this_thread::yield();
}

// Polls both, until the first throws; its error.
LostRank end_of(Transport& first, const std::function<void()>& poll_other = [] {}) {
  return expect_throw<LostRank>(
      [&] {
        Message message;
        wait_until([&] {
          poll_other();
          return first.receive(message);
        });
      },
      "a rank is lost");
}

TEST_CASE("A rank with another secret is refused") {
  auto options = mesh_options(2);
  auto others = options[0].addresses;
  const auto transport = make_socket_transport(std::move(options[0]));
  options[1].key = {std::byte{1}};
  const auto stranger = make_socket_transport(std::move(options[1]));
  stranger->send(0, {});
  Message message;
  const LostRank error = end_of(*stranger, [&] { CHECK(!transport->receive(message)); });
  CHECK(error.rank() == 0);
  check_contains(error.what(), "does not have this job's secret");
}

TEST_CASE("A rank of another generation is refused") {
  auto options = mesh_options(2);
  options[1].generation = 2;
  const auto transport = make_socket_transport(std::move(options[0]));
  const auto late = make_socket_transport(std::move(options[1]));
  late->send(0, {});
  Message message;
  const LostRank error = end_of(*late, [&] { CHECK(!transport->receive(message)); });
  check_contains(error.what(), "it belongs to another job, or has another secret");
}

TEST_CASE("A process that sends other bytes is dropped, and the job goes on") {
  auto options = mesh_options(2);
  const SocketAddress address = options[0].addresses[0];
  auto transports = std::vector<std::unique_ptr<Transport>>();
  for (MeshOptions& each : options) transports.push_back(make_socket_transport(std::move(each)));
  const Descriptor stranger = begin_connect(address, kSilence);
  Message message;
  std::byte byte{};
  wait_until([&] { return send(stranger.get(), std::string(100, 'x').data(), 100, MSG_NOSIGNAL) == 100; });
  wait_until([&] {
    CHECK(!transports[0]->receive(message));
    return recv(stranger.get(), &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  });
  transports[1]->send(0, Bytes(3));
  wait_until([&] { return transports[1]->receive(message), transports[0]->receive(message); });
  CHECK(message.from == 1);
  CHECK(message.bytes.size() == 3);
}

TEST_CASE("A connection has the limit that its rank has chosen, at both ends") {
  const Descriptor listener = listen_at({"127.0.0.1", 0});
  const SocketAddress address{"127.0.0.1", port_of(listener)};
  const Descriptor one = begin_connect(address, std::chrono::seconds(7));
  Descriptor other;
  wait_until([&] { return (other = accept_next(listener, std::chrono::seconds(0))).get() >= 0; });
  CHECK(silence_of(one) == "7 s");
  CHECK(silence_of(other) == "the system's limit");
}

TEST_CASE("The end of a process names its rank on the other ranks") {
  auto options = mesh_options(3);
  const SocketAddress of_rank_1 = options[0].addresses[1];
  const auto transport = make_socket_transport(std::move(options[0]));
  std::byte byte{};
  const auto pending = transport->receive_data(1, 5, {&byte, 1});
  const Descriptor dies = std::move(options[1].listener);
  const LostRank error = expect_throw<LostRank>(
      [&] {
        Descriptor accepted = accept_next(dies, kSilence);
        accepted.close();
        wait_until([&] { return pending->ready(); });
      },
      "rank 1 is lost");
  CHECK(error.rank() == 1);
  check_contains(error.what(), "the connection between it and rank 0 has ended");
  check_error(ErrorKind::kAborted, "between it and rank 0", [&] { pending->ready(); });
  Message message;
  CHECK_MESSAGE(!transport->receive(message), "only the first loss is reported where nobody waits for that rank");
}

TEST_CASE("A rank that leaves is no failure, except for a rank that waits for it") {
  auto transports = make_socket_transports(2);
  Message message;
  transports[1]->send(0, Bytes(1));
  wait_until([&] { return transports[1]->flushed(), transports[0]->receive(message); });
  std::thread leaves([&] { transports[1].reset(); });
  for (int i = 0; i < 1000; ++i) CHECK(!transports[0]->receive(message));
  std::byte byte{};
  const auto pending = transports[0]->receive_data(1, 5, {&byte, 1});
  check_error(ErrorKind::kAborted, "rank 0 waits for it, but it has left the job",
              [&] { wait_until([&] { return pending->ready(); }); });
  leaves.join();
}

TEST_CASE("A transfer of another length than its receive is refused, whichever comes first") {
  for (const bool early : {false, true}) {
    auto transports = make_socket_transports(2);
    std::vector<std::byte> sent(5), got(4);
    PendingPtr receive;
    if (!early) receive = transports[0]->receive_data(1, 5, got);
    auto send = transports[1]->send_data(0, 5, sent);
    Message message;
    transports[1]->send(0, {});
    wait_until([&] { return transports[1]->flushed(), transports[0]->receive(message); });
    if (early) receive = transports[0]->receive_data(1, 5, got);
    check_error(ErrorKind::kAborted, "data from rank 1 to rank 0 came cut off: 5 bytes where 4 were due",
                [&] { wait_until([&] { return receive->ready(); }); });
    receive.reset();
    send.reset();
    std::thread other([&] { transports[1].reset(); });
    transports[0].reset();
    other.join();
  }
}

TEST_CASE("After a failure no transfer uses its memory") {
  auto transports = make_socket_transports(2);
  std::vector<std::byte> sent(8 << 20, std::byte{7}), got(sent.size());
  auto receive = transports[0]->receive_data(1, 5, got);
  auto send = transports[1]->send_data(0, 5, sent);
  wait_until([&] { return transports[1]->flushed() || (receive->ready(), got[0] == std::byte{7}); });
  transports[0]->stop_data();
  transports[1]->stop_data();
  std::ranges::fill(got, std::byte{1});
  std::ranges::fill(sent, std::byte{2});
  transports[1]->send(0, Bytes(1));
  Message message;
  wait_until([&] { return transports[1]->flushed(), transports[0]->receive(message); });
  CHECK(std::ranges::count(got, std::byte{1}) == std::ssize(got));
  receive.reset();
  send.reset();
  std::thread other([&] { transports[1].reset(); });
  transports[0].reset();
  other.join();
}

// ---- engines ----

EngineOptions options_of_host(int rank) {
  EngineOptions options = default_options();
  options.settings.host_name = "host" + std::to_string(rank);
  return options;
}

void run_engines(int size, const std::function<void(Engine&, int)>& body) {
  auto options = mesh_options(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(options_of_host(rank),
                    make_socket_fabric(std::move(options[static_cast<std::size_t>(rank)]), PlaneOptions{}));
      body(engine, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("Engines on several hosts work over sockets, and an idle engine sleeps") {
  run_engines(3, [](Engine& engine, int rank) {
    for (int step = 0; step < 5; ++step) {
      std::vector<float> data(100'000, static_cast<float>(rank + step));
      wait(allreduce(engine, data, "x"));
      CHECK(data[99'999] == static_cast<float>(3 + 3 * step));
    }
    std::vector<float> data{1};
    if (rank == 0) wait(transfer(engine, Verb::kSend, data, 2, 4));
    if (rank == 2) wait(transfer(engine, Verb::kReceive, data, 0, 4));
    CHECK(engine.control() == "sockets");
    CHECK(engine.topology().cross_size == 3);
    engine.shutdown();
  });
}

}  // namespace
}  // namespace sirtaki::testing
