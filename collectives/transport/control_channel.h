// Sends control messages between rank 0 of a group and the other ranks. Each message has a number and a checksum. A
// lost, reordered, repeated or damaged message ends the job before the receiver acts on any later message.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.h"

namespace sirtaki {

class ControlChannel {
 public:
  // Bytes that the number and the checksum add to a message.
  static constexpr std::size_t kSealBytes = 8;

  // `names`: the global rank of each rank of the group. `before`: number of messages that each pair has exchanged over
  // this transport before.
  ControlChannel(Transport& transport, std::vector<int> names, std::uint32_t before = 0);

  void send(int to, Bytes bytes);
  // Takes the next message that has arrived; false if there is none. Throws Error(kAborted), once for each peer, if the
  // number or checksum is wrong. Later messages of that peer are dropped.
  bool receive(Message& message);

 private:
  struct Peer {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    bool broken = false;
  };

  void check(Message& message);
  [[noreturn]] void refuse(int from, const std::string& what);

  Transport& transport_;
  std::vector<int> names_;
  std::vector<Peer> peers_;
};

}  // namespace sirtaki
