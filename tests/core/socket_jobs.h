// Jobs whose ranks are threads of this process, connected by TCP over the loopback interface.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sockets/socket_transport.h"

namespace sirtaki::testing {

// The options of each rank's mesh, with a listener for each.
inline std::vector<MeshOptions> mesh_options(int size, const std::string& host = "127.0.0.1",
                                             const std::string& secret = "secret") {
  std::vector<Descriptor> listeners;
  std::vector<SocketAddress> addresses;
  for (int rank = 0; rank < size; ++rank) {
    listeners.push_back(listen_at({host, 0}));
    addresses.push_back({host, port_of(listeners.back())});
  }
  const auto key = std::as_bytes(std::span(secret));
  std::vector<MeshOptions> result;
  for (int rank = 0; rank < size; ++rank) {
    result.push_back({.rank = rank,
                      .addresses = addresses,
                      .key = {key.begin(), key.end()},
                      .listener = std::move(listeners[static_cast<std::size_t>(rank)])});
  }
  return result;
}

inline std::unique_ptr<Transport> make_socket_transport(MeshOptions options) {
  return std::make_unique<SocketTransport>(std::make_shared<Mesh>(std::move(options)));
}

inline std::vector<std::unique_ptr<Transport>> make_socket_transports(int size, const std::string& host = "127.0.0.1") {
  std::vector<std::unique_ptr<Transport>> transports;
  for (MeshOptions& options : mesh_options(size, host)) transports.push_back(make_socket_transport(std::move(options)));
  return transports;
}

}  // namespace sirtaki::testing
