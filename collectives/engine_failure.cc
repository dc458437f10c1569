// What an engine does when the job cannot go on.
#include "engine.h"

namespace sirtaki {
namespace {

// In which the other ranks are told.
constexpr std::chrono::seconds kFarewell{2};
// That a thread which waits for that has more.
constexpr std::chrono::milliseconds kMargin{500};
// Whoever ends this process rings; a look is only a second line of defence.
constexpr std::chrono::seconds kLook{60};
// The threads of a process that is killed go one after another, and MPI may miss one before the engine's has gone.
constexpr std::chrono::milliseconds kTimeToDie{200};

}  // namespace

Cause Engine::own_cause(CauseKind kind, const std::string& text) const {
  return {kind, topology_.rank, hosts_[static_cast<std::size_t>(topology_.rank)], text, wall_clock(),
          "",   topology_.rank};
}

// A rank of this host that has died, or is about to; -1 if there is none.
int Engine::find_dying() const {
  const auto end = Clock::now() + kTimeToDie;
  int dead = dead_rank();
  while (bells_ != nullptr && dead < 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    dead = dead_rank();
  }
  return dead;
}

// What this rank met; another rank may have been first. Where one has died, whatever failed did so for that.
void Engine::set_failure(const std::exception& error) {
  const int dead = find_dying();
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = own_cause(CauseKind::kFailedCollective, error.what());
  if (dead < 0) return;
  failure_->kind = CauseKind::kLostConnection;
  failure_->rank = dead;
  failure_->host = hosts_[static_cast<std::size_t>(dead)];
}

// What all ranks are told takes the place of what this rank met.
void Engine::adopt(const JobFailure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_agreed_ || (failure_ && !failure.agreed())) return;
  failure_ = failure.cause();
  failure_agreed_ = failure.agreed();
}

Cause Engine::fail_job(Cause cause) {
  std::unique_lock lock(mutex_);
  if (!failure_) {
    if (cause.rank < 0) {
      const std::string site = std::move(cause.site);
      cause = own_cause(cause.kind, cause.text);
      cause.site = site;
    }
    failure_ = std::move(cause);
  }
  doorbell_.ring(true);
  // The engine's thread may be held up inside a library.
  failure_changed_.wait_for(lock, kFarewell + kMargin, [this] { return failure_told_ || gone_; });
  return *failure_;
}

// The job cannot go on: fail everything here, tell the other ranks, then serve nothing but the end.
void Engine::fail() {
  doorbell_.get_up();
  Cause cause;
  bool agreed = false;
  {
    const std::lock_guard lock(mutex_);
    cause = *failure_;
    agreed = failure_agreed_;
  }
  // First, so that what has thrown is not run again.
  fail_everything(Error(ErrorKind::kAborted, cause.describe()));
  if (!agreed) agree_on_failure();
  flush_world();
  {
    const std::lock_guard lock(mutex_);
    failure_told_ = true;
  }
  failure_changed_.notify_all();
  report_changed_.notify_all();
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
  for (std::vector<Queued>* const waiting : {&postponed_, &queue}) {
    for (Queued& queued : std::exchange(*waiting, {})) on_finished(queued.group, queued.submission, Result(), &error);
  }
}

// Until the coordinator has told all ranks whose failure was the first.
void Engine::agree_on_failure() {
  Group& world = *groups_[0];
  const auto limit = Clock::now() + kFarewell;
  try {
    world.announce_failure(*cause());
    while (Clock::now() < limit) {
      if (!world.progress(false)) backoff_.pause(doorbell_, false);
    }
  } catch (const JobFailure& failure) {
    adopt(failure);
  } catch (const std::exception&) {
    // The transport is broken, and then nobody can be told.
  }
}

void Engine::flush_world() {
  Group& world = *groups_[0];
  const auto limit = Clock::now() + kFarewell;
  try {
    while (!world.flushed() && Clock::now() < limit) backoff_.pause(doorbell_, false);
  } catch (const std::exception&) {
  }
}

}  // namespace sirtaki
