// The names of the calls that this rank has in flight in one process set, and the numbers of its nameless calls.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/types.h"

namespace sirtaki {

class CallNames {
 public:
  // Numbers a nameless request and gives it a name. Throws Error(kInvalidArgument) if the name is in flight.
  void take(Request& request);
  void release(const Request& request) { in_flight_.erase({request.name, request.sequence}); }
  // The next nameless request of each verb is the first again.
  void restart_numbers() { counts_.fill(0); }

 private:
  std::set<std::pair<std::string, std::uint64_t>> in_flight_;
  std::array<std::uint64_t, kVerbCount> counts_{};
};

}  // namespace sirtaki
