#include "sleep/liveness_lock.h"

#include <cerrno>

namespace sirtaki {

void LivenessLock::prepare() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&lock_, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

void LivenessLock::begin() { pthread_mutex_lock(&lock_); }

void LivenessLock::end() { pthread_mutex_unlock(&lock_); }

// The lock shows a death only at first: in the GNU C library, trying a lock that was not repaired leaves it locked.
bool LivenessLock::has_died() {
  if (died_.load(std::memory_order_acquire)) return true;
  const int result = pthread_mutex_trylock(&lock_);
  if (result == EBUSY) return false;
  if (result != 0) died_.store(true, std::memory_order_release);
  if (result == 0 || result == EOWNERDEAD) pthread_mutex_unlock(&lock_);
  return result != 0;
}

}  // namespace sirtaki
