// How an engine says what it is doing, when somebody asks: its coordinator, or a thread of its process.
#include <unistd.h>

#include "engine/engine.h"

namespace sirtaki {
namespace {

constexpr int kOwn = -1;
// The interpreter's patience, and some time for an engine that is busy.
constexpr std::chrono::milliseconds kPatienceForReport{2500};
// The coordinator's patience, and as long for its answer, since a rank between hosts looks for messages once a second.
constexpr std::chrono::milliseconds kPatienceForJobStatus{7000};

}  // namespace

// ---- any thread ----

std::string Engine::report() {
  const std::string text = wait_for(report_, report_wanted_, kPatienceForReport);
  if (!text.empty()) return text;
  const std::string stacks = options_.stacks_by_force ? options_.stacks_by_force() : "";
  const std::string held_up =
      "process " + std::to_string(getpid()) + ": its engine is held up, in a library or by a stop";
  return section_of(topology_.rank, hosts_[static_cast<std::size_t>(topology_.rank)], {held_up, stacks});
}

std::string Engine::job_status() {
  const std::string text = wait_for(job_status_, job_status_wanted_, kPatienceForJobStatus);
  if (!text.empty()) return text;
  return report() + "\nrank 0 on host " + hosts_[0] + ", which asks the others, does not answer";
}

// "" if none comes in time.
std::string Engine::wait_for(std::optional<std::string>& text, bool& wanted, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (failure_) return "the job has failed: " + failure_->describe();
  wanted = has_questions_ = true;
  text.reset();
  doorbell_.ring(true);
  report_changed_.wait_for(lock, patience, [&] { return text.has_value() || failure_ || gone_; });
  if (!text && failure_) return "the job has failed: " + failure_->describe();
  return gone_ ? "the job has ended" : text.value_or("");
}

bool Engine::wait_for_question() {
  std::unique_lock lock(question_mutex_);
  question_changed_.wait(lock, [this] { return asked_ || no_more_questions_; });
  return std::exchange(asked_, false);
}

void Engine::answer(const std::string& stacks) {
  {
    const std::lock_guard lock(mutex_);
    answer_ = stacks;
    has_questions_ = true;
  }
  doorbell_.ring(true);
}

// ---- the engine's thread ----

void Engine::on_asked(int group) {
  if (asking_.empty()) asked_at_ = Clock::now();
  asking_.push_back(group);
  {
    const std::lock_guard lock(question_mutex_);
    asked_ = true;
  }
  question_changed_.notify_all();
}

void Engine::take_in_questions() {
  std::optional<std::string> stacks;
  bool own = false;
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    stacks = std::exchange(answer_, std::nullopt);
    own = std::exchange(report_wanted_, false);
    all = std::exchange(job_status_wanted_, false);
  }
  if (own) on_asked(kOwn);
  if (all) groups_[0]->ask_for_job_status();
  if (asking_.empty()) return;
  if (!stacks && Clock::now() - asked_at_ >= kPatienceWithInterpreter) {
    stacks = options_.stacks_by_force ? options_.stacks_by_force() : "";
    if (stacks->empty()) stacks = "(its interpreter does not answer: native code holds its lock)";
  }
  if (stacks) answer_questions(*stacks);
}

void Engine::answer_questions(const std::string& stacks) {
  const RankStatus report{describe(), stacks};
  for (const int id : std::exchange(asking_, {})) {
    if (groups_.contains(id)) groups_[id]->answer(report);
    if (id != kOwn) continue;
    {
      const std::lock_guard lock(mutex_);
      report_ = section_of(topology_.rank, hosts_[static_cast<std::size_t>(topology_.rank)], report);
    }
    report_changed_.notify_all();
  }
}

void Engine::on_job_status(const std::string& job_status) {
  {
    const std::lock_guard lock(mutex_);
    job_status_ = job_status;
  }
  report_changed_.notify_all();
}

// Keeps its memory, so that it costs no allocation.
void Engine::note_done(const Request& request) {
  last_done_.name = request.name;
  last_done_.sequence = request.sequence;
  last_done_.verb = request.verb;
  last_done_at_ = coarse_now();
  ++done_count_;
}

std::string Engine::describe() const {
  const auto now = Clock::now();
  std::vector<PendingCall> pending;
  std::string missing;
  for (const auto& [id, group] : groups_) {
    group->list_pending(pending);
    missing += group->list_missing(now);
  }
  for (const auto& group : closing_) group->list_pending(pending);
  std::string text = "process " + std::to_string(getpid()) + ": collectives finished: " + std::to_string(done_count_);
  if (done_count_ > 0) {
    text += ", the last " + std::string(name_of(last_done_.verb)) + " '" + last_done_.title() + "' " +
            seconds_since(last_done_at_, now) + " ago";
  }
  text += pending.empty() ? "; none pending" : "; " + std::to_string(pending.size()) + " pending";
  return text + sirtaki::list_pending(std::move(pending), now) + missing;
}

}  // namespace sirtaki
