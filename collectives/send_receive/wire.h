// Moves frames between any two ranks of the job, in order: a fixed head and a body, whose memory the receiver chooses
// once it knows the head. Through shared memory if all ranks share a host, else through transfers of the transport.
// Engine's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "transport/transport.h"

namespace sirtaki {

enum class FrameKind : std::uint64_t {
  kOffer,    // a rank sends: the body describes the tensor; if it is small, its bytes follow in the same body
  kTaken,    // answer: the receiver has the small tensor
  kReady,    // answer: the receiver waits for the bytes
  kRefused,  // answer: sent and received do not fit together; the body is the message
  kData,     // the bytes
};
inline constexpr int kFrameKindCount = 5;

struct FrameHead {
  FrameKind kind = FrameKind::kOffer;
  std::uint64_t number = 0;  // of the send, counted by the sending rank
  std::uint64_t bytes = 0;   // of the body
};

class FrameOwner {
 public:
  // Memory for the body of a frame that arrives; it stays valid until on_frame(). Throws Error(kAborted) for an
  // impossible head.
  virtual std::span<std::byte> place(int from, const FrameHead& head) = 0;
  virtual void on_frame(int from, const FrameHead& head) = 0;
  // The memory of this frame's body is no longer read.
  virtual void on_sent(int to, const FrameHead& head) = 0;

 protected:
  ~FrameOwner() = default;
};

class Wire {
 public:
  virtual ~Wire() = default;
  // The body is `own`, or `borrowed` if `own` is empty. `borrowed` stays valid until on_sent(). Never to this rank.
  virtual void send(int to, FrameHead head, Bytes own, std::span<const std::byte> borrowed) = 0;
  // This rank waits for a frame of that rank.
  virtual void expect(int from) = 0;
  // Must progress() be called, although this rank waits for no frame?
  virtual bool has_work() const = 0;
  // True if anything moved.
  virtual bool progress(FrameOwner& owner) = 0;
  // Is this rank woken when another rank has sent something, or has made room?
  virtual bool wakes() const = 0;
};

// Collective over the transport's ranks; blocks. Through shared memory if the ranks wake each other there, and if it
// has room for the rings of all. The transport outlives the wire.
std::unique_ptr<Wire> make_wire(Transport& transport);

}  // namespace sirtaki
