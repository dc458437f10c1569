// What every Transport must do. All ranks of the group call this at once.
#pragma once

#include "transport/transport.h"

namespace sirtaki::contract {

void check_transport(Transport& transport);

}  // namespace sirtaki::contract
