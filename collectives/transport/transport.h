// Moves bytes between the ranks of one group: control messages, whose length the receiver does not know in advance, and
// data transfers, whose length both sides know. Only the engine's thread calls it. No call blocks, except split().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/task.h"

namespace sirtaki {

struct Message {
  int from = -1;
  Bytes bytes;
};

// No rank sends a longer message, so a greater length means that the message is damaged.
inline constexpr std::uint64_t kLongestMessage = std::uint64_t{1} << 30;

inline constexpr int kFirstFreeTag = 32640;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Control. Messages between two ranks arrive in order. send() takes the bytes and returns at once. receive() gives
  // the next message that has arrived from any rank, or false if there is none. Only rank 0 and another rank exchange
  // control messages.
  virtual void send(int to, Bytes bytes) = 0;
  virtual bool receive(Message& message) = 0;
  // True once all sent bytes have left this rank, so that the transport may be destroyed.
  virtual bool flushed() = 0;

  // Data. Transfers between two ranks match by tag (0..32767), in order within one tag. Planes use the tags below
  // kFirstFreeTag. An empty span moves nothing and must be empty on both sides. The spans stay valid until the Pending
  // is ready.
  virtual PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) = 0;

  // The job has failed: from now on no transfer uses its memory, which the program may free.
  virtual void stop_data() {}

  // A transport for some of this group's ranks, in the order given; null on ranks outside. Collective over the whole
  // group; blocks until all have called. One call can make several disjoint groups: each rank passes the ranks of its
  // own new group, or an empty list.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks) = 0;
  // The same for one group, collective over its ranks alone: the others call nothing. Calls with common ranks are made
  // in the same order on all of them. Throws Error(kPrecondition) if the transport cannot do this.
  virtual std::unique_ptr<Transport> split_members(const std::vector<int>& ranks);

  // Can a rank wake another one on its host? If so, send() wakes the receiver, and wake() is called after a change in
  // shared memory. Otherwise ranks poll for messages.
  virtual bool wakes() const { return false; }
  virtual void wake(int peer) { static_cast<void>(peer); }
  // Does everything that arrives through the network wake this rank's engine? Otherwise it polls.
  virtual bool arrivals_wake() const { return false; }
  // Does that rank, as far as known, run on the caller's core? Then it cannot run while the caller spins.
  virtual bool shares_core(int peer) const { return static_cast<void>(peer), false; }

  // The time limit for a rank that waits for another one during a collective set-up. Transports made by split() have
  // the same.
  std::chrono::nanoseconds patience() const { return patience_; }
  void set_patience(std::chrono::nanoseconds patience) { patience_ = patience; }

  // Ends the whole job, at once if the means allow: other ranks cannot go on. May not return.
  virtual void abort_job(int exit_code) = 0;

 private:
  std::chrono::nanoseconds patience_ = std::chrono::seconds(120);
};

}  // namespace sirtaki
