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

bool LivenessLock::has_died() {
  const int result = pthread_mutex_trylock(&lock_);
  if (result == EBUSY) return false;
  // The lock of a dead owner is unlocked without being repaired. So every later call also sees the death.
  if (result == 0 || result == EOWNERDEAD) pthread_mutex_unlock(&lock_);
  return result == EOWNERDEAD || result == ENOTRECOVERABLE;
}

}  // namespace sirtaki
