// Waiting by turns, since there may be more ranks than cores.
#pragma once

#include <sched.h>

#include <utility>

#include "base/task.h"

namespace sirtaki::contract {

template <typename Condition>
void wait_until(Condition condition) {
  while (!condition()) sched_yield();
}

inline void wait(PendingPtr pending) {
  if (pending != nullptr) wait_until([&] { return pending->ready(); });
}

inline void wait(Task task) {
  wait_until([&] { return task.advance(); });
}

}  // namespace sirtaki::contract
