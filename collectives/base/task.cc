#include "base/task.h"

namespace sirtaki {

void Task::Awaiter::await_suspend(Handle handle) { handle.promise().waiting_for = this; }

void Task::notify(void (Watcher::*event)()) const {
  const promise_type& promise = handle_.promise();
  const bool waits = promise.waiting_for != nullptr && !promise.waiting_for->awaits_task();
  if (waits && promise.watcher != nullptr) (promise.watcher->*event)();
}

bool Task::advance() {
  if (!handle_) return true;
  promise_type& promise = handle_.promise();
  while (!handle_.done()) {
    if (promise.waiting_for != nullptr && !promise.waiting_for->poll()) {
      promise.progress |= promise.waiting_for->took_progress();
      return false;
    }
    notify(&Watcher::on_resumed);
    promise.waiting_for = nullptr;
    promise.progress = true;
    handle_.resume();
    if (promise.waiting_for != nullptr) {  // await_ready() has just polled it
      notify(&Watcher::on_suspended);
      return false;
    }
  }
  if (promise.error) std::rethrow_exception(promise.error);
  return true;
}

}  // namespace sirtaki
