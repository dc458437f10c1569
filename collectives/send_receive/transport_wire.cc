#include "send_receive/transport_wire.h"

#include <deque>
#include <vector>

namespace sirtaki {
namespace {

// Heads and bodies of two ranks alternate, so one tag keeps them in order.
constexpr int kTag = kFirstFreeTag;

// A head is received only from ranks from which this rank waits for a frame. So a rank that neither sends nor receives
// costs nothing, however large the job is.
class TransportWire final : public Wire {
 public:
  explicit TransportWire(Transport& transport)
      : transport_(transport), peers_(static_cast<std::size_t>(transport.size())) {}

  void send(int to, FrameHead head, Bytes own, std::span<const std::byte> borrowed) override {
    auto& outgoing = peer(to).outgoing;
    outgoing.push_back(std::make_unique<Outgoing>());
    Outgoing& frame = *outgoing.back();
    frame.own = std::move(own);
    const std::span<const std::byte> body = frame.own.empty() ? borrowed : std::span<const std::byte>(frame.own);
    frame.head = head;
    frame.head.bytes = body.size();
    frame.head_sent = transport_.send_data(to, kTag, std::as_bytes(std::span(&frame.head, 1)));
    frame.body_sent = transport_.send_data(to, kTag, body);
    ++unsent_;
  }

  void expect(int from) override {
    Peer& sender = peer(from);
    if (sender.incoming != nullptr) return;
    sender.incoming = std::make_unique<Incoming>();
    await_head(from, *sender.incoming);
  }

  bool has_work() const override { return unsent_ > 0; }

  bool progress(FrameOwner& owner) override {
    bool moved = false;
    for (const int rank : used_) moved |= send_on(rank, owner) | receive_on(rank, owner);
    return moved;
  }

  bool wakes() const override { return transport_.size() == 1 || transport_.arrivals_wake(); }

 private:
  struct Outgoing {
    FrameHead head;
    Bytes own;
    PendingPtr head_sent;
    PendingPtr body_sent;
  };
  struct Incoming {
    FrameHead head;
    bool in_body = false;
    PendingPtr pending;  // destroyed first
  };
  struct Peer {
    bool used = false;
    std::deque<std::unique_ptr<Outgoing>> outgoing;
    std::unique_ptr<Incoming> incoming;
  };

  static bool done(const PendingPtr& pending) { return pending == nullptr || pending->ready(); }

  Peer& peer(int rank) {
    Peer& found = peers_[static_cast<std::size_t>(rank)];
    if (!std::exchange(found.used, true)) used_.push_back(rank);
    return found;
  }

  void await_head(int from, Incoming& incoming) {
    incoming.in_body = false;
    incoming.pending = transport_.receive_data(from, kTag, std::as_writable_bytes(std::span(&incoming.head, 1)));
  }

  bool send_on(int to, FrameOwner& owner) {
    auto& outgoing = peers_[static_cast<std::size_t>(to)].outgoing;
    bool moved = false;
    while (!outgoing.empty() && done(outgoing.front()->head_sent) && done(outgoing.front()->body_sent)) {
      const FrameHead head = outgoing.front()->head;
      outgoing.pop_front();
      --unsent_;
      owner.on_sent(to, head);
      moved = true;
    }
    return moved;
  }

  bool receive_on(int from, FrameOwner& owner) {
    Incoming* const incoming = peers_[static_cast<std::size_t>(from)].incoming.get();
    bool moved = false;
    while (incoming != nullptr && done(incoming->pending)) {
      moved = true;
      if (!incoming->in_body) {
        incoming->in_body = true;
        incoming->pending = transport_.receive_data(from, kTag, owner.place(from, incoming->head));
        continue;
      }
      owner.on_frame(from, incoming->head);
      await_head(from, *incoming);
    }
    return moved;
  }

  Transport& transport_;
  std::vector<Peer> peers_;
  std::vector<int> used_;  // ranks to which this rank has sent, or from which it has expected a frame
  std::size_t unsent_ = 0;
};

}  // namespace

std::unique_ptr<Wire> make_transport_wire(Transport& transport) { return std::make_unique<TransportWire>(transport); }

}  // namespace sirtaki
