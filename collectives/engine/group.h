// One process set on one of its ranks. Connects the parts that serve it: the member's votes, the coordinator's
// decisions (on rank 0), the executor, the locked plan, and the watch over progress. Engine's thread only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agreement/response_cache.h"
#include "base/settings.h"
#include "engine/group_coordinator.h"
#include "execution/executor.h"
#include "fabric/fabric.h"
#include "locked_plan/plan_follower.h"
#include "observer/observer.h"
#include "queue/in_flight.h"
#include "transport/control_channel.h"
#include "watch/progress_watch.h"

namespace sirtaki {

// What a group needs from its engine.
class GroupOwner : public SubmissionOwner {
 public:
  // All ranks have joined; comes before this rank's joins are done.
  virtual void on_all_joined(int group) = 0;
  // All ranks agreed to make or remove a process set; called in the same order on all ranks.
  virtual void on_process_set(const Agreement& agreement, std::optional<Submission> submission) = 0;
  // The coordinator wants this rank's status.
  virtual void on_asked(int group) = 0;
  virtual void on_job_status(const std::string& job_status) = 0;
  // Sends and receives of this rank that make no progress.
  virtual std::vector<StandingWait> list_waits_for_peers(Clock::time_point now) = 0;
  // That rank of the job has left, while others wait to receive from it or to send to it.
  virtual void on_gone(int rank) = 0;
  virtual void log(const std::string& line) = 0;

 protected:
  ~GroupOwner() = default;
};

struct GroupOptions {
  int id = 0;
  std::vector<int> ranks;          // global, by rank within the group
  std::vector<std::string> hosts;  // by rank within the group
  Settings settings;
  std::uint32_t messages_before = 0;  // see ControlChannel
};

class Group final : private PlanOwner {
 public:
  Group(GroupOptions options, std::unique_ptr<Fabric> fabric, DataPlanes planes, PlanChannel plan_channel,
        GroupOwner& owner, const Observers& observers);

  // Takes all submissions, and votes for those that no plan runs.
  PlanFollower& plan() { return plan_; }
  void leave();
  void announce_failure(const FailureCause& cause) { announcement_.failure = cause; }
  // This rank's status, after on_asked().
  void answer(const RankStatus& report) { announcement_.report = report; }
  // GroupOwner::on_job_status() is called on all ranks when the coordinator has collected the status of each.
  void ask_for_job_status() { announcement_.wants_job_status = true; }
  // Adds this rank's unfinished requests to `pending`.
  void list_pending(std::vector<PendingCall>& pending) const;
  // On the coordinator's rank: the missing ranks of each pending request.
  std::string list_missing(Clock::time_point now) const;
  void set_fusion_threshold(std::int64_t bytes);

  // Sends and receives messages, and moves the running batches. True if anything moved.
  // `awaited`: a thread of this process waits for some work, and all its earlier submissions were taken in.
  // Throws Error(kAborted) when the job cannot continue.
  bool progress(bool awaited);

  // Called from time to time while this rank waits and nothing moves. Informs the coordinator of requests that make no
  // progress. Asks for a heartbeat if the coordinator is silent for long, and throws Error(kAborted) if none comes.
  void look(Clock::time_point now);

  // Is there anything that only progress() can move on?
  bool active() const;
  bool moving_data() const { return executor_.busy() || plan_.moving_data(); }
  // No collective is under way on the planes, so no other rank needs this rank there.
  bool planes_idle() const { return !executor_.busy() && !plan_.busy(); }
  // Is this rank woken when another rank has moved this group on?
  bool wakes() const {
    const bool by_messages = transport().wakes() || transport().arrivals_wake() || transport().size() == 1;
    return by_messages && executor_.wakes() && plan_.wakes();
  }
  // Is there queued work that may still fail? progress() checks it from time to time.
  bool watching() const { return executor_.watching() || plan_.watching(); }
  // Can this rank only go on when that rank of the job does?
  bool waits_for(int rank) const;
  bool leaving() const { return leaving_ != Leaving::kNo; }
  bool all_left() const { return leaving_ == Leaving::kAllLeft; }
  bool flushed() { return transport().flushed(); }

  void fail_all(const Error& error);
  // The process set was removed. Requests that were agreed on still run on every rank; the set's coordinator refuses
  // the others. Then all ranks have left.
  void close();

  Fabric& fabric() { return *fabric_; }
  const std::vector<int>& ranks() const { return options_.ranks; }

 private:
  enum class Leaving { kNo, kRequested, kAnnounced, kAllLeft };

  void vote(Submission submission) override;
  void on_plan_batch_done() override;
  void on_plan_ended(std::uint64_t steps) override;

  Transport& transport() const { return fabric_->transport(); }
  bool send_announcement();
  bool take_in_messages();
  bool coordinate();
  void report_standing(Clock::time_point now);
  bool act_on(Verdict verdict);
  void start(ItemList& items, const BatchArrival& arrival);
  int global(int member) const;
  bool waits() const;
  BatchItem to_batch_item(Item& item);
  void check_own_part(const BatchItem& item) const;
  void lock_plan(const std::vector<std::vector<CacheSlot>>& batches);
  void refuse(const Refusal& refusal);
  void finish_joins(int last);

  GroupOptions options_;
  std::unique_ptr<Fabric> fabric_;
  ControlChannel control_;
  GroupOwner& owner_;
  const Observers& observers_;
  Executor executor_;  // of batches that were voted for
  PlanFollower plan_;
  ProgressWatch progress_watch_;
  std::optional<GroupCoordinator> coordinator_;  // on rank 0
  ResponseCache cache_;
  InFlight in_flight_;
  Announcement announcement_;  // to be sent next
  // The first verdict makes a plan while this rank is still leaving the old one. The others came after it.
  std::deque<Verdict> postponed_;
  Leaving leaving_ = Leaving::kNo;
};

}  // namespace sirtaki
