#include "transport/transport.h"

#include "base/error.h"

namespace sirtaki {

std::unique_ptr<Transport> Transport::split_members(const std::vector<int>&) {
  throw Error(ErrorKind::kPrecondition, "transport " + std::string(name()) +
                                            " makes groups only by calls on all ranks, not by their members alone");
}

}  // namespace sirtaki
