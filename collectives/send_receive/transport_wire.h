// Frames through transfers of a transport: for ranks of several hosts.
#pragma once

#include "send_receive/wire.h"

namespace sirtaki {

std::unique_ptr<Wire> make_transport_wire(Transport& transport);

}  // namespace sirtaki
