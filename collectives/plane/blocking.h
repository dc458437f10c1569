// Waiting where nothing else is to be done: while a plane is made.
#pragma once

#include "backoff.h"
#include "task.h"

namespace sirtaki {

inline void wait_for(const PendingPtr& pending) {
  Doorbell doorbell;
  Backoff backoff(false);
  while (pending != nullptr && !pending->ready()) backoff.pause(doorbell, true);
}

}  // namespace sirtaki
