// TCP sockets of the kernel: descriptors, addresses, and the options that every connection of a job has.
#pragma once

#include <chrono>
#include <string>

#include "base/descriptor.h"

namespace sirtaki {

// An IPv4 or IPv6 address in numbers, with a zone where IPv6 needs one (fe80::1%eth0).
struct SocketAddress {
  std::string host;
  int port = 0;
  std::string text() const { return host + " port " + std::to_string(port); }
};

// A socket that accepts connections at this address; port 0 lets the kernel choose. Throws Error(kPrecondition).
Descriptor listen_at(const SocketAddress& address);
int port_of(const Descriptor& socket);

// Begins to connect, without waiting; an error later is that of pending_error(). Throws Error(kInvalidArgument) if the
// address cannot be read, and Error(kAborted) with the system's reason if there is no way to it.
// silence: of the other end, after which the connection is broken: its host is down, or cut off.
Descriptor begin_connect(const SocketAddress& address, std::chrono::seconds silence);
// The next connection that waits; no descriptor if there is none.
Descriptor accept_next(const Descriptor& listener, std::chrono::seconds silence);
// The limit of a connection as text, as "30 s".
std::string silence_of(const Descriptor& socket);
// The error number of a connection; 0 if there is none.
int pending_error(const Descriptor& socket);

}  // namespace sirtaki
