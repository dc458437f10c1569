#pragma once

#include <chrono>

#include "base/time_limits.h"

namespace sirtaki {

// What is under way when a step of the engine has moved nothing. The engine chooses how to wait by it.
struct Activity {
  bool active = false;                                  // something is under way
  bool moving_data = false;                             // a collective is running
  bool peers_wake = true;                               // every rank on which progress depends wakes this one
  std::chrono::nanoseconds longest_sleep = kIdleSleep;  // if nothing is active
};

}  // namespace sirtaki
