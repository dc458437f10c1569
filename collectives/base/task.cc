#include "base/task.h"

namespace sirtaki {

void Task::Awaiter::await_suspend(Handle handle) { handle.promise().waiting_for = this; }

bool Task::advance() {
  if (!handle_) return true;
  promise_type& promise = handle_.promise();
  while (!handle_.done()) {
    if (promise.waiting_for != nullptr && !promise.waiting_for->poll()) {
      promise.progress |= promise.waiting_for->took_progress();
      return false;
    }
    promise.waiting_for = nullptr;
    promise.progress = true;
    handle_.resume();
    if (promise.waiting_for != nullptr) return false;  // await_ready() has just polled it
  }
  if (promise.error) std::rethrow_exception(promise.error);
  return true;
}

}  // namespace sirtaki
