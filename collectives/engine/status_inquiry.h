// Collects the status of this rank, or of all ranks, for a coordinator or a thread of this process. The engine's thread
// lists pending requests, and the program's interpreter gives its stacks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agreement/rank_status.h"
#include "base/topology.h"
#include "engine/groups.h"
#include "queue/submit_queue.h"
#include "watch/finished_calls.h"

namespace sirtaki {

class StatusInquiry {
 public:
  // `topology` may be filled in later. `stacks_by_force`: gets the stacks if the interpreter does not answer; may be
  // null.
  StatusInquiry(const Topology& topology, SubmitQueue& queue, Groups& groups, Observers& observers,
                std::function<std::string()> stacks_by_force);

  // ---- any thread ----

  // Both block for at most some seconds.
  std::string report();      // of this rank
  std::string job_status();  // of all ranks, as far as they answer
  // Blocks until the interpreter's stacks are needed (true), or close() is called (false).
  bool wait_for_question();
  void answer(const std::string& stacks);
  // From now on every question gets this text as its answer.
  void close(const std::string& text);
  // The same with a general text, unless it was closed before.
  void end();

  // ---- the thread that does the engine's work ----

  // The coordinator of this group wants a report.
  void collect(int group);
  void set_job_status(const std::string& text);
  // Is a report due now or soon? Then look() must be called in time.
  bool pending() const { return !asking_.empty(); }
  void look();

 private:
  static constexpr int kThisProcess = -1;  // stands for a thread of this process, instead of a group's coordinator

  std::string ask(std::optional<std::string>& text, std::function<void()> call, std::chrono::milliseconds limit);
  void send_reports(const std::string& stacks);
  std::string describe() const;
  std::string section(const RankStatus& status) const;
  std::string stacks_by_force() const { return stacks_by_force_ ? stacks_by_force_() : ""; }

  const Topology& topology_;
  SubmitQueue& queue_;
  Groups& groups_;
  FinishedCalls finished_calls_;
  std::function<std::string()> stacks_by_force_;

  std::vector<int> asking_;  // groups, or kThisProcess
  Clock::time_point asked_at_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stacks_wanted_ = false;
  std::optional<std::string> report_;
  std::optional<std::string> job_status_;
  std::optional<std::string> closed_;
};

}  // namespace sirtaki
