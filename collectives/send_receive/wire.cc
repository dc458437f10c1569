#include "send_receive/wire.h"

#include <string>

#include "send_receive/shm_wire.h"
#include "send_receive/transport_wire.h"

namespace sirtaki {

std::unique_ptr<Wire> make_wire(Transport& transport) {
  std::unique_ptr<Wire> wire;
  std::string why;  // not shown: the shared-memory plane fails for the same reason, and reports it
  if (transport.wakes()) wire = make_shm_wire(transport, why);
  return wire != nullptr ? std::move(wire) : make_transport_wire(transport);
}

}  // namespace sirtaki
