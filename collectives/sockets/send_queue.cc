#include "sockets/send_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace sirtaki {
namespace {

constexpr std::size_t kFramesAtOnce = 16;

iovec rest_of(std::span<const std::byte> bytes, std::size_t sent) {
  const auto rest = bytes.subspan(std::min(sent, bytes.size()));
  return {const_cast<std::byte*>(rest.data()), rest.size()};  // sendmsg() only reads it
}

}  // namespace

void SendQueue::add(const SocketFrameHead& head, Bytes own, std::span<const std::byte> borrowed, bool* done) {
  if (first_ > kFramesAtOnce && first_ * 2 > frames_.size()) {
    frames_.erase(frames_.begin(), frames_.begin() + static_cast<std::ptrdiff_t>(std::exchange(first_, 0)));
  }
  Frame& frame = frames_.emplace_back();
  frame.own = std::move(own);
  frame.body = frame.own.empty() ? borrowed : std::span<const std::byte>(frame.own);
  frame.head = encode(head, ++number_);
  frame.done = done;
}

int SendQueue::flush(int socket) {
  while (!empty()) {
    std::array<iovec, 2 * kFramesAtOnce> parts{};
    std::size_t count = 0;
    std::size_t bytes = 0;
    for (std::size_t i = first_; i < frames_.size() && count < parts.size(); ++i) {
      const Frame& frame = frames_[i];
      parts[count++] = rest_of(frame.head, frame.sent);
      parts[count++] = rest_of(frame.body, frame.sent - std::min(frame.sent, frame.head.size()));
      bytes += frame.size() - frame.sent;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN ? 0 : errno;
    on_sent(static_cast<std::size_t>(sent));
    if (static_cast<std::size_t>(sent) < bytes) return 0;
  }
  return 0;
}

void SendQueue::on_sent(std::size_t count) {
  while (count > 0) {
    Frame& frame = frames_[first_];
    const std::size_t part = std::min(count, frame.size() - frame.sent);
    frame.sent += part;
    count -= part;
    if (frame.sent < frame.size()) return;
    if (frame.done != nullptr) *frame.done = true;
    frame.own = Bytes();
    ++first_;
  }
  if (empty()) clear();
}

void SendQueue::copy(Frame& frame) {
  if (!frame.own.empty() || frame.body.empty()) return;
  frame.own.assign(frame.body.begin(), frame.body.end());
  frame.body = frame.own;
  frame.done = nullptr;
}

void SendQueue::copy_body(const bool* done) {
  for (std::size_t i = first_; i < frames_.size(); ++i) {
    if (frames_[i].done == done) copy(frames_[i]);
  }
}

void SendQueue::copy_all_bodies() {
  for (std::size_t i = first_; i < frames_.size(); ++i) copy(frames_[i]);
}

void SendQueue::clear() {
  frames_.clear();
  first_ = 0;
}

}  // namespace sirtaki
