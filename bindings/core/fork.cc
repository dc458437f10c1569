#include "fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "base/error.h"
#include "process.h"

namespace sirtaki {
namespace {

// Global, so that the handlers of fork() can read it.
std::atomic<pid_t> parent{0};

}  // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      parent = getppid();
      leave_connections_to_parent();
    });
  });
}

bool is_forked_child() { return parent.load(std::memory_order_relaxed) != 0; }

void refuse_forked_child() {
  if (!is_forked_child()) return;
  throw Error(ErrorKind::kPrecondition,
              "process " + std::to_string(getpid()) + " was forked from a rank (process " + std::to_string(parent) +
                  ") and is none itself: only the rank's own process can call collectives, init() and what asks about "
                  "the job's state. Call them there, and give the results to the child; in a data loader's worker, "
                  "rank() and size() may be called.");
}

}  // namespace sirtaki
