#include "sleep/blocking_call.h"

#include <signal.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>

namespace sirtaki {

struct BlockingCall::State {
  std::function<void()> call;
  std::exception_ptr thrown;
  std::atomic<bool> done{false};
};

BlockingCall::BlockingCall(std::function<void()> call) : state_(std::make_shared<State>()) {
  state_->call = std::move(call);
  std::thread([state = state_] {
    sigset_t all;  // signals are for the program's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    try {
      state->call();
    } catch (...) {
      state->thrown = std::current_exception();
    }
    state->call = nullptr;
    state->done.store(true, std::memory_order_release);
  }).detach();
}

bool BlockingCall::ready() {
  if (!state_->done.load(std::memory_order_acquire)) return false;
  if (state_->thrown) std::rethrow_exception(std::exchange(state_->thrown, nullptr));
  return true;
}

}  // namespace sirtaki
