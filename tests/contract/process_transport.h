// A transport between processes that a test has forked, just enough to make a plane: small transfers over sockets.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/error.h"
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
  // Closes the others' ends in this process, so that a rank's death closes its own; -1 closes all.
  void leave_to(int rank) const {
    for (int owner = 0; owner < size_; ++owner) {
      for (int peer = 0; peer < size_; ++peer) {
        if (owner != rank && owner != peer) close(of(owner, peer));
      }
    }
  }

 private:
  std::size_t index(int rank, int peer) const { return static_cast<std::size_t>(rank * size_ + peer); }

  int size_;
  std::vector<int> ends_;
};

class ProcessTransport final : public Transport {
 public:
  // `of_splits`: for one call of split() each, between the same processes.
  ProcessTransport(const Sockets& sockets, int rank, std::span<const Sockets> of_splits = {})
      : sockets_(sockets), processes_(static_cast<std::size_t>(sockets.size())), rank_(rank), of_splits_(of_splits) {
    std::iota(processes_.begin(), processes_.end(), 0);
  }

  std::string_view name() const override { return "sockets"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(processes_.size()); }

  void send(int, Bytes) override { throw std::logic_error("no control messages here"); }
  bool receive(Message&) override { return false; }
  bool flushed() override { return true; }

  PendingPtr send_data(int to, int, std::span<const std::byte> bytes) override {
    if (::send(socket(to), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) fail();
    return nullptr;
  }
  PendingPtr receive_data(int from, int, std::span<std::byte> bytes) override {
    return std::make_unique<Arrival>(socket(from), bytes);
  }

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override {
    const Sockets& sockets = of_splits_.front();
    of_splits_ = of_splits_.subspan(1);
    const auto found = std::ranges::find(ranks, rank_);
    if (found == ranks.end()) return nullptr;
    auto part = std::make_unique<ProcessTransport>(sockets, static_cast<int>(found - ranks.begin()));
    part->processes_ = ranks;
    return part;
  }
  void abort_job(int exit_code) override { _exit(exit_code); }

 private:
  class Arrival final : public Pending {
   public:
    Arrival(int socket, std::span<std::byte> bytes) : socket_(socket), left_(bytes) {}
    bool ready() override {
      while (!left_.empty()) {
        const ssize_t count = recv(socket_, left_.data(), left_.size(), MSG_DONTWAIT);
        if (count < 0 && errno == EAGAIN) return false;
        if (count <= 0) fail();
        left_ = left_.subspan(static_cast<std::size_t>(count));
      }
      return true;
    }

   private:
    int socket_;
    std::span<std::byte> left_;
  };

  [[noreturn]] static void fail() { throw Error(ErrorKind::kAborted, "a peer is gone"); }
  int socket(int peer) const {
    return sockets_.of(processes_[static_cast<std::size_t>(rank_)], processes_[static_cast<std::size_t>(peer)]);
  }

  const Sockets& sockets_;
  std::vector<int> processes_;  // of the ranks
  int rank_;
  std::span<const Sockets> of_splits_;
};

}  // namespace sirtaki::contract
