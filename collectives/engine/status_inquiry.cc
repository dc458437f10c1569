#include "engine/status_inquiry.h"

#include <unistd.h>

#include "base/time_limits.h"

namespace sirtaki {

StatusInquiry::StatusInquiry(const Topology& topology, SubmitQueue& queue, Groups& groups, Observers& observers,
                             std::function<std::string()> stacks_by_force)
    : topology_(topology), queue_(queue), groups_(groups), stacks_by_force_(std::move(stacks_by_force)) {
  observers.add(finished_calls_);
}

// ---- any thread ----

std::string StatusInquiry::report() {
  std::string text = ask(report_, [this] { collect(kThisProcess); }, kOwnReport);
  if (!text.empty()) return text;
  return section({"process " + std::to_string(getpid()) +
                      ": its engine is blocked, in a library or because the process is stopped",
                  stacks_by_force()});
}

std::string StatusInquiry::job_status() {
  std::string text = ask(job_status_, [this] { groups_.world().ask_for_job_status(); }, kJobStatus);
  if (!text.empty()) return text;
  return report() + "\nrank 0 on host " + topology_.host_name(0) + ", which collects the status, does not answer";
}

// Posts `call`, which makes the engine produce the text, and waits for it. "" if there is no answer in time.
std::string StatusInquiry::ask(std::optional<std::string>& text, std::function<void()> call,
                               std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (closed_) return *closed_;
  text.reset();
  queue_.post(std::move(call));
  changed_.wait_for(lock, limit, [&] { return text || closed_; });
  return text ? *text : closed_.value_or("");
}

bool StatusInquiry::wait_for_question() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stacks_wanted_ || closed_; });
  return std::exchange(stacks_wanted_, false);
}

void StatusInquiry::answer(const std::string& stacks) {
  queue_.post([this, stacks] { send_reports(stacks); });
}

void StatusInquiry::close(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = text;
  }
  changed_.notify_all();
}

void StatusInquiry::end() {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = "the job has ended";
  }
  changed_.notify_all();
}

// ---- the thread that does the engine's work ----

void StatusInquiry::collect(int group) {
  if (asking_.empty()) asked_at_ = Clock::now();
  asking_.push_back(group);
  {
    const std::lock_guard lock(mutex_);
    stacks_wanted_ = true;
  }
  changed_.notify_all();
}

// Sends reports without the interpreter's answer once its time is over.
void StatusInquiry::look() {
  if (asking_.empty() || Clock::now() - asked_at_ < kStacksOfInterpreter) return;
  std::string stacks = stacks_by_force();
  if (stacks.empty()) stacks = "(its interpreter does not answer: native code holds its lock)";
  send_reports(stacks);
}

void StatusInquiry::send_reports(const std::string& stacks) {
  if (asking_.empty()) return;
  const RankStatus status{describe(), stacks};
  for (const int id : std::exchange(asking_, {})) {
    if (Group* const group = groups_.find(id)) group->answer(status);
    if (id != kThisProcess) continue;
    const std::lock_guard lock(mutex_);
    report_ = section(status);
  }
  changed_.notify_all();
}

void StatusInquiry::set_job_status(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    job_status_ = text;
  }
  changed_.notify_all();
}

std::string StatusInquiry::describe() const {
  const auto now = Clock::now();
  return "process " + std::to_string(getpid()) + ": " + finished_calls_.describe(now) + "; " +
         groups_.describe_pending(now);
}

std::string StatusInquiry::section(const RankStatus& status) const {
  return section_of(topology_.rank, topology_.host_name(topology_.rank), status);
}

}  // namespace sirtaki
