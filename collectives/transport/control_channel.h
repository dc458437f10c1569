// Control messages between rank 0 of a group and the others, each with its number and a checksum: one that is lost,
// overtaken, doubled or damaged on the way ends the job with that cause before anybody acts on what follows.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/transport.h"

namespace sirtaki {

class ControlChannel {
 public:
  // What a message grows by.
  static constexpr std::size_t kSealBytes = 8;

  // `names`: the ranks as users know them, by rank within the group. `before`: how many messages each pair has sent in
  // either direction over this transport by another line.
  ControlChannel(Transport& transport, std::vector<int> names, std::uint32_t before = 0);

  void send(int to, Bytes bytes);
  // The next message that has arrived, and false when there is none. Throws Error(kAborted), once for each peer, for
  // one that is not what its sender has sent next; what follows it from there is dropped.
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
