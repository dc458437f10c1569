// Frames that wait until the kernel takes them. Transfers are sent from the caller's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "sockets/socket_frame.h"

namespace sirtaki {

class SendQueue {
 public:
  // The body is `own`, or `borrowed` if `own` is empty. `done`: set to true once the kernel has all bytes of the frame,
  // so that `borrowed` is no longer needed; may be null.
  void add(const SocketFrameHead& head, Bytes own, std::span<const std::byte> borrowed = {}, bool* done = nullptr);
  bool empty() const { return first_ == frames_.size(); }

  // Sends what the socket takes now. Returns the error number of a broken connection, else 0.
  int flush(int socket);
  // The memory of this transfer becomes invalid before it is sent: sends a copy.
  void copy_body(const bool* done);
  void copy_all_bodies();
  void clear();

 private:
  struct Frame {
    SocketFrameBytes head;
    Bytes own;
    std::span<const std::byte> body;
    bool* done = nullptr;
    std::size_t sent = 0;  // bytes of head and body

    std::size_t size() const { return head.size() + body.size(); }
  };

  void on_sent(std::size_t count);
  static void copy(Frame& frame);

  std::vector<Frame> frames_;
  std::size_t first_ = 0;     // the frames before it are sent
  std::uint32_t number_ = 0;  // of the last frame
};

}  // namespace sirtaki
