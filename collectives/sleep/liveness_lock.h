// Whether a process of this host still lives, shown by a lock in shared memory that it holds as long as it does: the
// kernel gives it up for a process that dies. Process numbers would not do across containers, and are used again.
#pragma once

#include <pthread.h>

namespace sirtaki {

// Lies in shared memory, which is zero at first.
class LivenessLock {
 public:
  void prepare();  // its owner, before others look
  void begin();    // on the thread whose death is to be seen
  void end();      // on the same thread: what follows is no death
  bool has_died();

 private:
  pthread_mutex_t lock_;
};

}  // namespace sirtaki
