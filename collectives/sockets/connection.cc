#include "sockets/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace sirtaki {
namespace {

// A connection that has more to read is read again in the next turn, so that one sender cannot keep out the others.
constexpr int kReadsInTurn = 16;

std::string explain(int error, const Descriptor& socket) {
  if (error == 0) return "its process has ended without leaving the job (the connection was closed)";
  const std::string text = std::strerror(error);
  if (error == ETIMEDOUT || error == EHOSTUNREACH) {
    return "it has not answered for " + silence_of(socket) +
           ": its host is down or cut off, or the process is stopped (" + text + ")";
  }
  if (error == ECONNREFUSED) return "nothing listens at its address: its process has ended (" + text + ")";
  return "its process has ended without leaving the job (" + text + ")";
}

}  // namespace

Connection::Connection(ConnectionOwner& owner, Descriptor socket, int peer)
    : owner_(owner), socket_(std::move(socket)), peer_(peer), state_(State::kConnecting) {}

Connection::Connection(ConnectionOwner& owner, Descriptor socket)
    : owner_(owner), socket_(std::move(socket)), state_(State::kAwaitsHello) {}

void Connection::close(const std::string& why) {
  if (closed()) return;
  redirect(nullptr);
  queue_.clear();
  state_ = State::kClosed;
  owner_.on_closed(*this, why);
  socket_.close();
}

void Connection::flush() {
  if (!identified()) return;
  if (const int error = queue_.flush(socket_.get()); error != 0) on_end(error);
}

// What has arrived before the connection broke is still worth reading: the peer may have left normally.
void Connection::on_end(int error) {
  std::string why = explain(error, socket_);
  try {
    if (identified()) read_frames();
  } catch (const Error& damaged) {
    why = damaged.what();
  }
  close(why);
}

void Connection::on_event() {
  try {
    if (state_ == State::kConnecting) finish_connecting();
    if (!identified() && !closed()) identify();
    if (identified()) read_frames();
    flush();
  } catch (const Error& error) {
    close(error.what());
  }
}

// ---- identification ----

void Connection::finish_connecting() {
  if (const int error = pending_error(socket_); error != 0) return close(explain(error, socket_));
  Introducer introducer = owner_.self();
  introducer.to = peer_;
  hello_ = make_hello(introducer);
  send_opening(hello_);
  state_ = State::kAwaitsAnswer;
}

void Connection::identify() {
  if (state_ == State::kAwaitsHello && receive_opening(kHelloBytes)) on_hello();
  if (state_ == State::kAwaitsAnswer && receive_opening(kAnswerBytes)) on_answer();
  if (state_ == State::kAwaitsConfirmation && receive_opening(kProofBytes)) {
    if (!is_confirmation(owner_.key(), hello_, answer_, received_)) return close("");
    peer_ = read_hello(hello_)->from;
    open();
  }
}

void Connection::on_hello() {
  hello_ = std::exchange(received_, {});
  const auto introducer = read_hello(hello_);
  Introducer expected = owner_.self();
  if (!introducer || introducer->from < 0 || introducer->from >= expected.size || introducer->from == expected.from) {
    return close("");
  }
  expected.to = std::exchange(expected.from, introducer->from);
  if (!(*introducer == expected)) return close("");
  answer_ = make_answer(owner_.key(), hello_);
  send_opening(answer_);
  state_ = State::kAwaitsConfirmation;
}

void Connection::on_answer() {
  answer_ = std::exchange(received_, {});
  if (!is_answer(owner_.key(), hello_, answer_)) {
    return close("the process at its address does not have this job's secret");
  }
  send_opening(make_confirmation(owner_.key(), hello_, answer_));
  open();
}

void Connection::open() {
  state_ = State::kOpen;
  received_ = hello_ = answer_ = {};
  owner_.on_identified(*this);
}

// True once `size` bytes are there. Never reads more, since frames may follow.
bool Connection::receive_opening(std::size_t size) {
  const std::size_t before = received_.size();
  received_.resize(size);
  const ssize_t count = recv(socket_.get(), received_.data() + before, size - before, MSG_DONTWAIT);
  received_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (count == 0 && size > before) {
    close(
        "the process at its address closed the connection before it had identified itself: it belongs to another "
        "job, or has another secret");
  } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
    close(explain(errno, socket_));
  }
  return !closed() && received_.size() == size;
}

// A new connection takes these few bytes at once.
void Connection::send_opening(const Bytes& bytes) {
  if (send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
    throw Error(ErrorKind::kAborted, explain(errno, socket_));
  }
}

// ---- frames ----

void Connection::read_frames() {
  for (int i = 0; i < kReadsInTurn && !closed(); ++i) {
    const std::span<std::byte> scratch = owner_.scratch();
    std::memcpy(scratch.data(), partial_.data(), partial_size_);
    const bool direct = left_ > 0 && target_ != nullptr;
    std::array<iovec, 2> parts{};
    if (direct) parts[0] = {target_->memory.data() + target_->received, left_};
    parts[1] = {scratch.data() + partial_size_, scratch.size() - partial_size_};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return close(explain(count == 0 ? 0 : errno, socket_));
    const auto total = static_cast<std::size_t>(count);
    const std::size_t taken = direct ? std::min<std::size_t>(total, left_) : 0;
    if (taken > 0) take_payload(taken);
    parse(scratch.first(partial_size_ + total - taken));
    if (total < parts[0].iov_len + parts[1].iov_len) return;
  }
}

// `bytes`: the part of a head that came before, and what has come after it.
void Connection::parse(std::span<const std::byte> bytes) {
  partial_size_ = 0;
  while (!bytes.empty() && !closed()) {
    if (left_ > 0) {
      const std::size_t count = std::min<std::size_t>(left_, bytes.size());
      if (target_ != nullptr) std::memcpy(target_->memory.data() + target_->received, bytes.data(), count);
      take_payload(count);
      bytes = bytes.subspan(count);
    } else if (bytes.size() < kSocketFrameBytes) {
      std::ranges::copy(bytes, partial_.begin());
      partial_size_ = bytes.size();
      return;
    } else {
      begin_frame(decode_head(bytes, owner_.self().generation, ++frames_, name_of_peer()));
      bytes = bytes.subspan(kSocketFrameBytes);
    }
  }
}

void Connection::begin_frame(const SocketFrameHead& head) {
  head_ = head;
  left_ = head.length;
  if (head.kind == SocketFrameKind::kLeave) leaving_ = true;
  if (head.kind == SocketFrameKind::kMessage) {
    message_ = Bytes(head.length);
    message_target_ = {message_};
    redirect(&message_target_);
  } else {
    redirect(owner_.on_frame(peer_, head));
  }
  if (left_ == 0) end_frame();
}

void Connection::redirect(FrameTarget* target) {
  if (target_ != nullptr) target_->source = nullptr;
  target_ = target;
  if (target_ != nullptr) target_->source = this;
}

void Connection::take_payload(std::size_t count) {
  left_ -= count;
  if (target_ != nullptr) target_->received += count;
  if (left_ == 0) end_frame();
}

void Connection::end_frame() {
  redirect(nullptr);
  if (head_.kind == SocketFrameKind::kMessage) owner_.on_message(peer_, head_.group, std::exchange(message_, {}));
}

std::string Connection::name_of_peer() const { return "rank " + std::to_string(peer_); }

}  // namespace sirtaki
