// One TCP connection between two ranks: identifies the other end, then carries frames in both directions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "authentication/identification.h"
#include "sockets/inbox.h"
#include "sockets/send_queue.h"
#include "sockets/socket.h"

namespace sirtaki {

// What all connections of a rank share. A connection is not destroyed inside these calls.
class ConnectionOwner {
 public:
  virtual std::span<const std::byte> key() const = 0;
  virtual Introducer self() const = 0;         // `from` is this rank, `to` is not set
  virtual std::span<std::byte> scratch() = 0;  // for bytes of which it is not known yet what they are

  // The other end has proven that it is the peer.
  virtual void on_identified(Connection& connection) = 0;
  // The end of this connection. `why`: continues "rank 3 failed: ".
  virtual void on_closed(Connection& connection, const std::string& why) = 0;
  virtual void on_message(int from, std::uint64_t group, Bytes bytes) = 0;
  // A frame of another kind begins. Returns the memory for its bytes; null: they are dropped.
  virtual FrameTarget* on_frame(int from, const SocketFrameHead& head) = 0;

 protected:
  ~ConnectionOwner() = default;
};

class Connection {
 public:
  // Connects to a rank.
  Connection(ConnectionOwner& owner, Descriptor socket, int peer);
  // For a connection that was accepted.
  Connection(ConnectionOwner& owner, Descriptor socket);

  int socket() const { return socket_.get(); }
  int peer() const { return peer_; }  // -1: not known yet
  bool identified() const { return state_ == State::kOpen; }
  bool closed() const { return state_ == State::kClosed; }
  bool leaving() const { return leaving_; }
  // Whether something waits until the socket takes it.
  bool blocked() const { return state_ == State::kConnecting || (identified() && !queue_.empty()); }

  bool watches_output = false;  // for the owner: whether epoll reports that the socket takes more

  SendQueue& queue() { return queue_; }
  const SendQueue& queue() const { return queue_; }
  // Sends what the socket takes.
  void flush();
  // After epoll has reported something about the socket.
  void on_event();
  // The rest of the frame that arrives goes to `target`; null: it is dropped.
  void redirect(FrameTarget* target);
  void close(const std::string& why);

 private:
  enum class State { kConnecting, kAwaitsHello, kAwaitsAnswer, kAwaitsConfirmation, kOpen, kClosed };

  void identify();
  bool receive_opening(std::size_t size);
  void send_opening(const Bytes& bytes);
  void finish_connecting();
  void on_hello();
  void on_answer();
  void open();

  void read_frames();
  void parse(std::span<const std::byte> bytes);
  void begin_frame(const SocketFrameHead& head);
  void take_payload(std::size_t count);
  void end_frame();
  std::string name_of_peer() const;
  void on_end(int error);

  ConnectionOwner& owner_;
  Descriptor socket_;
  int peer_ = -1;
  State state_;

  // While the other end is identified.
  Bytes hello_;
  Bytes answer_;
  Bytes received_;

  SendQueue queue_;

  SocketFrameHead head_;           // of the frame that arrives
  std::uint64_t left_ = 0;         // bytes of it that are still to come
  FrameTarget* target_ = nullptr;  // null: they are dropped
  Bytes message_;
  FrameTarget message_target_;
  SocketFrameBytes partial_{};  // the beginning of a head
  std::size_t partial_size_ = 0;
  std::uint32_t frames_ = 0;
  bool leaving_ = false;  // the peer has announced that it leaves
};

}  // namespace sirtaki
