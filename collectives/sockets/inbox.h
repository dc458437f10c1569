// What has arrived for one group: control messages, and data matched with the receives of this rank by sender and tag.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "memory/host_buffer.h"
#include "transport/transport.h"

namespace sirtaki {

class Connection;

// Memory for the bytes of one frame.
struct FrameTarget {
  std::span<std::byte> memory;
  std::size_t received = 0;
  Connection* source = nullptr;  // the connection that fills it now

  bool complete() const { return received == memory.size(); }
};

// A receive that was posted. `from`: in the job.
struct Receive : FrameTarget {
  Receive(int from_, int tag_, std::span<std::byte> bytes) : FrameTarget{bytes}, from(from_), tag(tag_) {}

  int from;
  int tag;
  std::uint64_t wrong_length = 0;  // of the frame that came, if it has not the length of `memory`
};

class Inbox {
 public:
  void add(Message message) { messages_.push_back(std::move(message)); }
  bool take(Message& message);

  // The frame for this receive may have come already, at least its beginning.
  void post(Receive& receive);
  // Nothing more is written into the receive's memory. Bytes that still arrive for it are dropped.
  void withdraw(Receive& receive);
  void withdraw_all();

  // Where data that begins to arrive goes: to the receive that waits longest for it, else to memory of its own until
  // the receive is posted. Null if the length is wrong.
  FrameTarget* begin(int from, int tag, std::uint64_t length);

 private:
  struct Early : FrameTarget {
    int from;
    int tag;
    HostBuffer buffer;
  };

  std::deque<Message> messages_;
  std::vector<Receive*> posted_;               // without a frame yet, the oldest first
  std::vector<Receive*> arriving_;             // the frame has begun to arrive
  std::vector<std::unique_ptr<Early>> early_;  // in the order of arrival
};

}  // namespace sirtaki
