#include "send_receive/shm_wire.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <new>
#include <vector>

#include "base/error.h"
#include "host/byte_ring.h"
#include "host/shm_segment.h"

namespace sirtaki {
namespace {

// All rings together take about this much memory, as long as each has its least size.
constexpr std::size_t kAllRings = std::size_t{4} << 20;
constexpr std::size_t kLeastRing = std::size_t{4} << 10;
constexpr std::size_t kLargestRing = std::size_t{256} << 10;
// A rank moves at most this much from or to one rank before it turns to others.
constexpr std::size_t kBytesOfTurn = std::size_t{1} << 20;

constexpr std::size_t kPieces = 4;  // of a ring

// Written by the ranks that send to the owner, after they have put bytes into a ring. So a rank that waits for nothing
// reads one word, and no rings.
struct alignas(128) Arrivals {
  std::atomic<std::uint64_t> count;
};

std::size_t ring_size(int ranks) {
  const auto pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  return std::clamp(std::bit_floor(kAllRings / pairs), kLeastRing, kLargestRing);
}

std::size_t segment_size(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * sizeof(Arrivals) + n * n * (ring_size(ranks) + ByteRing::kEnds);
}

class ShmWire final : public Wire {
 public:
  ShmWire(Transport& transport, std::unique_ptr<ShmSegment> segment)
      : transport_(transport),
        segment_(std::move(segment)),
        arrivals_(std::launder(reinterpret_cast<Arrivals*>(segment_->bytes().data()))),
        rank_(transport.rank()),
        piece_(std::max(ring_size(transport.size()) / kPieces, kLeastRing)) {
    for (int peer = 0; peer < transport.size(); ++peer) peers_.emplace_back(ring(rank_, peer), ring(peer, rank_));
  }

  void send(int to, FrameHead head, Bytes own, std::span<const std::byte> borrowed) override {
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    head.bytes = own.empty() ? borrowed.size() : own.size();
    peer.outgoing.push_back({head, std::move(own), borrowed});
    ++unsent_;
  }

  void expect(int) override {}
  bool has_work() const override {
    return unsent_ > 0 || arrivals_[rank_].count.load(std::memory_order_acquire) != seen_;
  }

  bool progress(FrameOwner& owner) override {
    const std::uint64_t arrived = arrivals_[rank_].count.load(std::memory_order_acquire);
    bool moved = arrived != seen_;
    if (moved) {
      bool emptied = true;
      for (int from = 0; from < transport_.size(); ++from) emptied &= receive_on(from, owner);
      if (emptied) seen_ = arrived;
    }
    for (int to = 0; unsent_ > 0 && to < transport_.size(); ++to) moved |= send_on(to, owner);
    return moved;
  }

  bool wakes() const override { return true; }

 private:
  struct Outgoing {
    FrameHead head;
    Bytes own;
    std::span<const std::byte> borrowed;

    std::span<const std::byte> body() const { return own.empty() ? borrowed : std::span<const std::byte>(own); }
  };
  struct Peer {
    Peer(ByteRing to, ByteRing from) : writes(to), reads(from) {}
    ByteRing writes;
    std::deque<Outgoing> outgoing;
    std::size_t written = 0;  // of the first frame
    bool blocked = false;     // the ring has no room for the rest

    ByteRing reads;
    FrameHead head;
    std::size_t read = 0;  // of the frame that arrives
    std::span<std::byte> body;
  };

  ByteRing ring(int from, int to) const {
    const std::size_t capacity = ring_size(transport_.size());
    const std::size_t ranks = static_cast<std::size_t>(transport_.size());
    const std::size_t number = static_cast<std::size_t>(from) * ranks + static_cast<std::size_t>(to);
    return ByteRing(segment_->bytes().data() + ranks * sizeof(Arrivals) + number * (capacity + ByteRing::kEnds),
                    capacity);
  }

  bool send_on(int to, FrameOwner& owner) {
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    if (peer.outgoing.empty()) return false;
    std::size_t sent = 0;
    while (!peer.outgoing.empty() && sent < kBytesOfTurn) {
      const std::size_t count = write(to, peer, owner);
      if (count > 0) {
        sent += count;
        arrivals_[to].count.fetch_add(1, std::memory_order_release);
        transport_.wake(to);
        continue;
      }
      // Says that the ring is full, then tries once more. So the reader wakes this rank, or has made room before.
      if (std::exchange(peer.blocked, true)) break;
      peer.writes.set_blocked(true);
    }
    if (peer.outgoing.empty() && std::exchange(peer.blocked, false)) peer.writes.set_blocked(false);
    return sent > 0;
  }

  // Writes about one piece, and returns the number of bytes. So the reader can read it while the next one is written.
  std::size_t write(int to, Peer& peer, FrameOwner& owner) {
    std::size_t count = 0;
    while (!peer.outgoing.empty() && count < piece_) {
      const Outgoing& frame = peer.outgoing.front();
      const auto head = std::as_bytes(std::span(&frame.head, 1));
      if (peer.written < head.size()) count += push(peer, head.subspan(peer.written));
      if (peer.written < head.size()) return count;
      const auto body = frame.body();
      const auto rest = body.subspan(peer.written - head.size());
      count += push(peer, rest.first(std::min(rest.size(), piece_)));
      if (peer.written < head.size() + body.size()) return count;
      const FrameHead sent = frame.head;
      peer.outgoing.pop_front();
      peer.written = 0;
      --unsent_;
      owner.on_sent(to, sent);
    }
    return count;
  }

  static std::size_t push(Peer& peer, std::span<const std::byte> bytes) {
    const std::size_t count = peer.writes.push(bytes);
    peer.written += count;
    return count;
  }

  // True once the ring is empty.
  bool receive_on(int from, FrameOwner& owner) {
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    std::size_t taken = 0;
    bool emptied = false;
    while (!emptied && taken < kBytesOfTurn) {
      const std::size_t count = read(from, peer, owner);
      taken += count;
      emptied = count == 0;
    }
    if (taken > 0 && peer.reads.writer_blocked()) transport_.wake(from);
    return emptied;
  }

  // The number of bytes that were taken from the ring.
  std::size_t read(int from, Peer& peer, FrameOwner& owner) {
    constexpr std::size_t kHead = sizeof(FrameHead);
    std::size_t count = 0;
    if (peer.read < kHead) {
      count = peer.reads.pop(std::as_writable_bytes(std::span(&peer.head, 1)).subspan(peer.read));
      peer.read += count;
      if (peer.read < kHead) return count;
      peer.body = owner.place(from, peer.head);
    }
    const auto rest = peer.body.subspan(peer.read - kHead);
    const std::size_t more = peer.reads.pop(rest.first(std::min(rest.size(), piece_)));
    peer.read += more;
    if (peer.read == kHead + peer.body.size()) {
      peer.read = 0;
      owner.on_frame(from, peer.head);
    }
    return count + more;
  }

  Transport& transport_;
  std::unique_ptr<ShmSegment> segment_;
  Arrivals* arrivals_;  // by rank
  int rank_;
  std::size_t piece_;
  std::vector<Peer> peers_;  // by rank; this rank's own entry is unused
  std::size_t unsent_ = 0;
  std::uint64_t seen_ = 0;  // arrivals up to which the rings were emptied
};

}  // namespace

std::unique_ptr<Wire> make_shm_wire(Transport& transport, std::string& why) {
  auto segment = ShmSegment::make(transport, segment_size(transport.size()), why);
  return segment == nullptr ? nullptr : std::make_unique<ShmWire>(transport, std::move(segment));
}

}  // namespace sirtaki
