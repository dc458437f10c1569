// A blocking wait, for use while a plane is made and the engine has no other work.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/task.h"
#include "host/backoff.h"
#include "transport/transport.h"

namespace sirtaki {

// Throws Error(kAborted) when the transport's patience is over. `whom`: names the awaited rank of the group, for
// errors.
inline void wait_for(const PendingPtr& pending, const Transport& transport, const std::string& whom) {
  Doorbell doorbell;
  Backoff backoff(false);
  const auto limit = Clock::now() + transport.patience();
  while (pending != nullptr && !pending->ready()) {
    if (Clock::now() > limit) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(transport.patience()).count();
      throw Error(ErrorKind::kAborted, "rank " + std::to_string(transport.rank()) + " of " +
                                           std::to_string(transport.size()) + " has waited " + std::to_string(seconds) +
                                           " s (SIRTAKI_START_TIMEOUT) for " + whom +
                                           " while the ranks prepared to exchange data: dead, stopped, or cut off");
    }
    backoff.pause(doorbell, true);
  }
}

}  // namespace sirtaki
