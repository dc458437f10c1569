// Shows whether a process of this host still lives. The process holds a lock in shared memory, and the kernel releases
// the lock when the process dies. Process numbers are not enough: containers have their own, and they are reused.
#pragma once

#include <pthread.h>

#include <atomic>

namespace sirtaki {

// Lies in shared memory, which is zero at first.
class LivenessLock {
 public:
  void prepare();  // by the owner, before others call has_died()
  void begin();    // by the thread whose death must be noticed
  void end();      // by the same thread: from now on its end is no death
  bool has_died();

 private:
  pthread_mutex_t lock_;
  std::atomic<bool> died_;  // found by any process
};

}  // namespace sirtaki
