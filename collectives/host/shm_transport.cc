#include "host/shm_transport.h"

#include <array>
#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"
#include "host/byte_ring.h"
#include "host/core_placement.h"

namespace sirtaki {
namespace {

constexpr std::size_t kLengthSize = sizeof(std::uint64_t);

// Messages to one peer, each sent as its length and its bytes. Messages wait here until the ring has room.
class Outbox {
 public:
  explicit Outbox(ByteRing ring) : ring_(ring) {}

  void add(Bytes message) {
    const std::uint64_t length = message.size();
    Bytes framed(kLengthSize + message.size());
    std::memcpy(framed.data(), &length, kLengthSize);
    if (length > 0) std::memcpy(framed.data() + kLengthSize, message.data(), message.size());
    waiting_.push_back(std::move(framed));
  }

  bool empty() const { return waiting_.empty(); }

  // True if any byte was sent.
  bool pump() {
    bool moved = push();
    if (waiting_.empty()) {
      if (std::exchange(blocked_, false)) ring_.set_blocked(false);
      return moved;
    }
    if (!std::exchange(blocked_, true)) {
      ring_.set_blocked(true);
      moved |= push();
    }
    return moved;
  }

 private:
  bool push() {
    bool moved = false;
    while (!waiting_.empty()) {
      const Bytes& first = waiting_.front();
      const std::size_t count = ring_.push(std::span(first).subspan(done_));
      moved |= count > 0;
      done_ += count;
      if (done_ < first.size()) return moved;
      waiting_.pop_front();
      done_ = 0;
    }
    return moved;
  }

  ByteRing ring_;
  std::deque<Bytes> waiting_;
  std::size_t done_ = 0;  // bytes of the first message that were sent
  bool blocked_ = false;
};

// Messages from one peer.
class Inbox {
 public:
  explicit Inbox(ByteRing ring) : ring_(ring) {}

  // True, with the next message, once the whole message is there. `freed_space`: the peer waits for room; wake it.
  bool take(Bytes& message, bool& freed_space) {
    freed_space = false;
    if (length_read_ < kLengthSize) {
      const std::size_t count = ring_.pop(std::span(length_).subspan(length_read_));
      freed_space = count > 0;
      length_read_ += count;
      if (length_read_ < kLengthSize) return finish(freed_space, false);
      std::uint64_t length = 0;
      std::memcpy(&length, length_.data(), kLengthSize);
      if (length > kLongestMessage) {
        throw Error(ErrorKind::kAborted, "a message of " + std::to_string(length) + " bytes: shared memory is damaged");
      }
      body_.resize(length);
    }
    while (body_read_ < body_.size()) {
      const std::size_t count = ring_.pop(std::span(body_).subspan(body_read_));
      if (count == 0) return finish(freed_space, false);
      freed_space = true;
      body_read_ += count;
    }
    message = std::exchange(body_, {});
    length_read_ = body_read_ = 0;
    return finish(freed_space, true);
  }

 private:
  bool finish(bool& freed_space, bool complete) {
    freed_space = freed_space && ring_.writer_blocked();
    return complete;
  }

  ByteRing ring_;
  std::array<std::byte, kLengthSize> length_{};
  std::size_t length_read_ = 0;
  Bytes body_;
  std::size_t body_read_ = 0;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(std::unique_ptr<Transport> inner, std::unique_ptr<ShmSegment> segment, std::shared_ptr<HostBells> bells,
               std::vector<int> job_ranks)
      : inner_(std::move(inner)),
        segment_(std::move(segment)),
        bells_(std::move(bells)),
        job_ranks_(std::move(job_ranks)),
        placement_(bells_, job_ranks_[static_cast<std::size_t>(inner_->rank())]) {
    for (int peer = 1; peer < size(); ++peer) {
      if (rank() != 0 && rank() != peer) continue;
      std::byte* const memory = segment_->bytes().data() + static_cast<std::size_t>(peer - 1) * 2 * ByteRing::kMemory;
      const ByteRing to_member(memory);
      const ByteRing to_coordinator(memory + ByteRing::kMemory);
      peers_.push_back({rank() == 0 ? peer : 0, Outbox(rank() == 0 ? to_member : to_coordinator),
                        Inbox(rank() == 0 ? to_coordinator : to_member)});
    }
  }

  static std::size_t segment_size(int size) { return static_cast<std::size_t>(size - 1) * 2 * ByteRing::kMemory; }

  std::string_view name() const override { return "shm"; }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool wakes() const override { return true; }
  bool arrivals_wake() const override { return inner_->arrivals_wake(); }
  void wake(int peer) override { wake_owner(bells_->of(job_ranks_[static_cast<std::size_t>(peer)])); }

  bool shares_core(int peer) const override {
    return placement_.shared_with(job_ranks_[static_cast<std::size_t>(peer)]);
  }

  void send(int to, Bytes bytes) override {
    Peer& peer = peers_[rank() == 0 ? static_cast<std::size_t>(to - 1) : 0];
    peer.outbox.add(std::move(bytes));
    pump(peer);
  }

  bool receive(Message& message) override {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[next_];
      next_ = (next_ + 1) % peers_.size();
      pump(peer);
      bool freed_space = false;
      const bool complete = peer.inbox.take(message.bytes, freed_space);
      if (freed_space) wake(peer.rank);
      if (!complete) continue;
      message.from = peer.rank;
      return true;
    }
    return false;
  }

  bool flushed() override {
    bool all = inner_->flushed();
    for (Peer& peer : peers_) {
      pump(peer);
      all &= peer.outbox.empty();
    }
    return all;
  }

  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override {
    return inner_->send_data(to, tag, bytes);
  }
  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override {
    return inner_->receive_data(from, tag, bytes);
  }

  void stop_data() override { inner_->stop_data(); }

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override { return inner_->split(ranks); }
  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override {
    return inner_->split_members(ranks);
  }

  void abort_job(int exit_code) override { inner_->abort_job(exit_code); }

 private:
  struct Peer {
    int rank;
    Outbox outbox;
    Inbox inbox;
  };

  void pump(Peer& peer) {
    if (!peer.outbox.empty() && peer.outbox.pump()) wake(peer.rank);
  }

  std::unique_ptr<Transport> inner_;
  std::unique_ptr<ShmSegment> segment_;
  std::shared_ptr<HostBells> bells_;
  std::vector<int> job_ranks_;
  CorePlacement placement_;
  std::vector<Peer> peers_;  // rank 0: all others; another rank: rank 0
  std::size_t next_ = 0;     // the peer to check first
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::unique_ptr<Transport> inner, std::shared_ptr<HostBells> bells,
                                              std::vector<int> job_ranks, std::string& why) {
  auto segment = ShmSegment::make(*inner, ShmTransport::segment_size(inner->size()), why);
  if (segment == nullptr) return inner;
  const auto patience = inner->patience();
  auto transport =
      std::make_unique<ShmTransport>(std::move(inner), std::move(segment), std::move(bells), std::move(job_ranks));
  transport->set_patience(patience);
  return transport;
}

}  // namespace sirtaki
