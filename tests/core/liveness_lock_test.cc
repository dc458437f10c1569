// A process that has died is told from one that lives and from one that has left in order.
#include "sleep/liveness_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

namespace {

using sirtaki::LivenessLock;

// A process that begins, perhaps ends in order, and then says so and lives on.
pid_t start(LivenessLock& life, bool ends) {
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    life.begin();
    if (ends) life.end();
    if (write(pipe_ends[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  CHECK_MESSAGE(read(pipe_ends[0], &byte, 1) == 1, "the child has not begun");
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("A dead process is told from a live one and from one that ended in order") {
  void* memory = mmap(nullptr, 2 * sizeof(LivenessLock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE_MESSAGE(memory != MAP_FAILED, "mmap");
  auto* lives = std::launder(reinterpret_cast<LivenessLock*>(memory));
  lives[0].prepare();
  lives[1].prepare();
  CHECK_MESSAGE(!lives[0].has_died(), "before it has begun");
  const pid_t one = start(lives[0], false);
  const pid_t other = start(lives[1], true);
  for (int i = 0; i < 2; ++i) CHECK_MESSAGE(!lives[0].has_died(), "while it lives");
  end(one);
  end(other);
  for (int i = 0; i < 5; ++i) CHECK_MESSAGE(lives[0].has_died(), "killed");
  CHECK_MESSAGE(!lives[1].has_died(), "killed after it had left in order");
}

}  // namespace
