// A transport between processes that a test has forked, just enough to make a plane: small transfers over sockets.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "transport/transport.h"

namespace sirtaki::contract {

// Made before forking; every process then takes its rank.
class Sockets {
 public:
  explicit Sockets(int size) : size_(size), ends_(static_cast<std::size_t>(size * size)) {
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < a; ++b) {
        std::array<int, 2> pair{};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) != 0) throw std::runtime_error("no socket pair");
        ends_[index(a, b)] = pair[0];
        ends_[index(b, a)] = pair[1];
      }
    }
  }
  int size() const { return size_; }
  int of(int rank, int peer) const { return ends_[index(rank, peer)]; }

 private:
  std::size_t index(int rank, int peer) const { return static_cast<std::size_t>(rank * size_ + peer); }

  int size_;
  std::vector<int> ends_;
};

class ProcessTransport final : public Transport {
 public:
  ProcessTransport(const Sockets& sockets, int rank) : sockets_(sockets), rank_(rank) {}

  std::string_view name() const override { return "sockets"; }
  int rank() const override { return rank_; }
  int size() const override { return sockets_.size(); }

  void send(int, Bytes) override { throw std::logic_error("no control messages here"); }
  bool receive(Message&) override { return false; }
  bool flushed() override { return true; }

  PendingPtr send_data(int to, int, std::span<const std::byte> bytes) override {
    if (write(sockets_.of(rank_, to), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("a peer is gone");
    }
    return nullptr;
  }
  PendingPtr receive_data(int from, int, std::span<std::byte> bytes) override {
    if (recv(sockets_.of(rank_, from), bytes.data(), bytes.size(), MSG_WAITALL) != static_cast<ssize_t>(bytes.size())) {
      throw std::runtime_error("a peer is gone");
    }
    return nullptr;
  }

  std::unique_ptr<Transport> split(const std::vector<int>&) override { throw std::logic_error("cannot split"); }
  void abort_job(int exit_code) override { _exit(exit_code); }

 private:
  const Sockets& sockets_;
  int rank_;
};

}  // namespace sirtaki::contract
