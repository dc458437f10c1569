// Bytes between the ranks of one group. Two uses: short control messages of any length, and data transfers whose length
// both sides know. All calls come from the engine's thread; none of them blocks, except split().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"

namespace sirtaki {

using Bytes = std::vector<std::byte>;

struct Message {
  int from = -1;
  Bytes bytes;
};

// Nothing longer is sent, so that a longer one that comes was damaged.
inline constexpr std::uint64_t kLongestMessage = std::uint64_t{1} << 30;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Control. Messages between two ranks arrive in order. send() takes the bytes and returns at once. receive() gives
  // the next message that has arrived, from whichever rank, and false when there is none. Only the pairs (0, r) talk.
  virtual void send(int to, Bytes bytes) = 0;
  virtual bool receive(Message& message) = 0;
  // True once everything sent has left this rank, so that the transport may be destroyed.
  virtual bool flushed() = 0;

  // Data. Transfers between two ranks match by tag (0..32767), in order within one tag. An empty span moves nothing and
  // must be empty on both sides. The spans stay valid until the Pending is ready.
  virtual PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) = 0;

  // A transport for some of this group's ranks, in the order given; null on ranks outside. Collective over the whole
  // group; blocks until all have called. Several sets without a common rank can be made at once: each rank then gives
  // the one that it is in, or none.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks) = 0;

  // Can a rank that has work for another wake it? Then send() does, and wake() after a change in memory that they
  // share. Otherwise ranks look for what has come.
  virtual bool wakes() const { return false; }
  virtual void wake(int peer) { static_cast<void>(peer); }
  // Does that rank, as far as is known, work on the core that the caller is on? Then it has to wait for the caller.
  virtual bool shares_core(int peer) const { return static_cast<void>(peer), false; }

  // What carries the data, where this one adds something to another.
  virtual Transport& base() { return *this; }

  // How long a rank waits for another where they make something together and it can do nothing else. Parts that are
  // split off have the same.
  std::chrono::nanoseconds patience() const { return patience_; }
  void set_patience(std::chrono::nanoseconds patience) { patience_ = patience; }

  // Ends the whole job, at once if the means allow: other ranks cannot go on. May not return.
  virtual void abort_job(int exit_code) = 0;

 private:
  std::chrono::nanoseconds patience_ = std::chrono::seconds(120);
};

}  // namespace sirtaki
