#pragma once

#include <chrono>

#include "base/time_limits.h"

namespace sirtaki {

// What is under way when a step of the engine has moved nothing: by this it decides how to wait.
struct Activity {
  bool active = false;                                  // something is under way
  bool moving_data = false;                             // a collective runs
  bool peers_wake = true;                               // every rank that can move something on wakes this one
  std::chrono::nanoseconds longest_sleep = kIdleSleep;  // if nothing is active
};

}  // namespace sirtaki
