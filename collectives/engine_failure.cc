// What an engine does when the job cannot go on.
#include "engine.h"

namespace sirtaki {
namespace {

// In which the other ranks are told.
constexpr std::chrono::seconds kFarewell{2};
// Whoever ends this process rings; a look is only a second line of defence.
constexpr std::chrono::seconds kLook{60};

}  // namespace

// The job cannot go on: tell the other ranks, fail everything here, then serve nothing but the end.
void Engine::fail(const Error& error) {
  doorbell_.get_up();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Error(ErrorKind::kAborted, error.what());
  }
  // First, so that what has thrown is not run again.
  fail_everything(*failure_);
  spread_failure();
  while (true) {
    const std::uint32_t heard = doorbell_.lie_down(Rest::kAsleep);
    if (may_stop()) break;
    doorbell_.sleep(Rest::kAsleep, heard, kLook);
  }
  std::optional<int> exit_code;
  {
    const std::lock_guard lock(mutex_);
    exit_code = exit_code_;
  }
  try {
    if (exit_code) groups_[0]->transport().abort_job(*exit_code);
  } catch (const std::exception&) {
    // The process ends by itself then, and the starter sees its exit code.
  }
}

void Engine::fail_everything(const Error& error) {
  std::vector<Queued> queue;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
  }
  for (auto& [id, group] : groups_) group->fail_all(error);
  for (auto& group : closing_) group->fail_all(error);
  for (Queued& queued : queue) on_finished(queued.group, queued.submission, Result(), &error);
}

void Engine::spread_failure() {
  Group& world = *groups_[0];
  const auto limit = Clock::now() + kFarewell;
  try {
    world.announce_failure(failure_->what());
    while (Clock::now() < limit) {
      const bool moved = world.progress(false);
      if (!moved && world.flushed()) break;
      if (!moved) backoff_.pause(doorbell_, false);
    }
  } catch (const std::exception&) {
    // The verdict that ends the job comes back as this error; or the transport is broken, and then nobody can be told.
  }
  try {
    while (!world.flushed() && Clock::now() < limit) backoff_.pause(doorbell_, false);
  } catch (const std::exception&) {
  }
}

}  // namespace sirtaki
