// A thread that sleeps in epoll and rings the engine's doorbell when something arrives. It watches only while the
// engine sleeps: an engine that is awake looks by itself, and needs no second thread for each packet.
#pragma once

#include <thread>

#include "base/descriptor.h"
#include "sleep/doorbell.h"

namespace sirtaki {

class ArrivalWatch {
 public:
  // `epoll`: reports what has arrived. Both arguments outlive this object.
  ArrivalWatch(int epoll, Doorbell& doorbell);
  ArrivalWatch(const ArrivalWatch&) = delete;
  ArrivalWatch& operator=(const ArrivalWatch&) = delete;
  ~ArrivalWatch();

  // The next arrival rings the doorbell once. So does one that is there already.
  void arm();

 private:
  void run();

  int epoll_;
  Doorbell& doorbell_;
  Descriptor gate_;  // an epoll of its own, with `epoll_` in it, which reports once each time it is armed
  Descriptor end_;   // becomes readable when the thread is to end
  std::thread thread_;
};

}  // namespace sirtaki
