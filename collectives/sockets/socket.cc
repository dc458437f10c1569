#include "sockets/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace sirtaki {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Resolved resolve(const SocketAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) {
    throw Error(ErrorKind::kInvalidArgument, "the address '" + address.host + "' of a rank: " + gai_strerror(code));
  }
  return {found, &freeaddrinfo};
}

Descriptor new_socket(int family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) throw Error(ErrorKind::kPrecondition, std::string("no socket: ") + std::strerror(errno));
  return socket;
}

// Without these, a host that is down would be noticed only after hours. A failure to set one leaves the default.
void set_options(const Descriptor& socket, std::chrono::seconds silence) {
  const int seconds = static_cast<int>(silence.count());
  const auto set = [&](int level, int option, int value) {
    static_cast<void>(setsockopt(socket.get(), level, option, &value, sizeof(value)));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  if (seconds == 0) return;
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 3));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
}

}  // namespace

Descriptor listen_at(const SocketAddress& address) {
  const Resolved found = resolve(address);
  Descriptor socket = new_socket(found->ai_family);
  if (bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    throw Error(ErrorKind::kPrecondition, "cannot listen at " + address.text() + ": " + std::strerror(errno));
  }
  return socket;
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  std::array<char, 16> port{};
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV);
  return std::stoi(port.data());
}

Descriptor begin_connect(const SocketAddress& address, std::chrono::seconds silence) {
  const Resolved found = resolve(address);
  Descriptor socket = new_socket(found->ai_family);
  set_options(socket, silence);
  if (connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    throw Error(ErrorKind::kAborted, std::strerror(errno));
  }
  return socket;
}

Descriptor accept_next(const Descriptor& listener, std::chrono::seconds silence) {
  Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() >= 0) set_options(socket, silence);
  return socket;
}

std::string silence_of(const Descriptor& socket) {
  unsigned milliseconds = 0;
  socklen_t length = sizeof(milliseconds);
  getsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &length);
  return milliseconds == 0 ? "the system's limit" : std::to_string(milliseconds / 1000) + " s";
}

int pending_error(const Descriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace sirtaki
