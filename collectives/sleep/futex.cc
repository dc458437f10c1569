#include "sleep/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace sirtaki {

namespace {

int operation(int basic, FutexScope scope) { return scope == FutexScope::kHost ? basic : basic | FUTEX_PRIVATE_FLAG; }

}  // namespace

WakeReason futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                      std::optional<std::chrono::nanoseconds> timeout, FutexScope scope) {
  timespec limit{};
  if (timeout) {
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(*timeout);
    limit.tv_sec = whole.count();
    limit.tv_nsec = (*timeout - whole).count();
  }
  const long result =
      syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), expected, timeout ? &limit : nullptr, nullptr, 0);
  if (result == 0 || errno == EAGAIN) return WakeReason::kWoken;
  return errno == EINTR ? WakeReason::kInterrupted : WakeReason::kTimeout;
}

void futex_wake_all(std::atomic<std::uint32_t>& word, FutexScope scope) {
  syscall(SYS_futex, &word, operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace sirtaki
