// The stacks of this process's Python threads while native code holds the GIL, so that the interpreter cannot answer.
// Python's faulthandler can still write them, in a signal handler. frameworks/sirtaki/job/rank/stacks.py chooses
// the signal and the file. The calling thread raises the signal for itself, so that no other thread is disturbed.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <mutex>

#include "bindings.h"

namespace sirtaki {
namespace {

struct Means {
  std::mutex mutex;
  int signal = 0;  // 0: no stacks available
  int file = -1;
};

Means& means() {
  static auto* const instance = new Means;
  return *instance;
}

// The engine's thread and similar threads block signals.
void raise_unblocked(int number) {
  sigset_t only;
  sigset_t before;
  sigemptyset(&only);
  sigaddset(&only, number);
  pthread_sigmask(SIG_UNBLOCK, &only, &before);
  raise(number);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::string read_all(int file) {
  const off_t size = lseek(file, 0, SEEK_CUR);
  std::string text(size > 0 ? static_cast<std::size_t>(size) : 0, '\0');
  const ssize_t count = pread(file, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::string stacks_by_force() {
  const std::lock_guard lock(means().mutex);
  if (means().signal == 0 || ftruncate(means().file, 0) != 0) return "";
  lseek(means().file, 0, SEEK_SET);
  raise_unblocked(means().signal);
  const std::string text = read_all(means().file);
  if (text.empty()) return "";
  return "(native code holds the interpreter's lock; by faulthandler, most recent call first)\n" + text;
}

void bind_forced_stacks(pybind11::module_& module) {
  module.def("set_forced_stacks", [](int number, int file) {
    const std::lock_guard lock(means().mutex);
    means().signal = number;
    means().file = file;
  });
}

}  // namespace sirtaki
