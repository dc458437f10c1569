// One process set on one of its ranks: who is in it, what is under way, and the parts that make it work. Everything
// here belongs to the engine's thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control_line.h"
#include "coordinator.h"
#include "executor.h"
#include "picture.h"
#include "plan.h"
#include "response_cache.h"
#include "settings.h"
#include "stall_watch.h"
#include "submission.h"
#include "transport/transport.h"

namespace sirtaki {

// Written by the engine's thread (the last by any), read by any.
struct Statistics {
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> tensors{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> messages{0};
  std::atomic<std::uint64_t> cache_hits{0};
  std::atomic<std::uint64_t> cache_misses{0};
  std::atomic<std::uint64_t> idle_wakeups{0};
  std::atomic<std::uint64_t> planned_batches{0};  // of `batches`, those that no vote preceded
  std::atomic<std::uint64_t> plans{0};            // made
  std::atomic<std::uint64_t> departures{0};       // of this rank or another from a plan
  std::atomic<std::uint64_t> wait_cpu_ns{0};      // of the program's threads in waits, helping included, if measured
};

// Where the batches of a locked plan run; without planes there are no plans.
struct PlanLane {
  std::unique_ptr<Transport> transport;
  DataPlanes planes;
};

// What a group asks of its engine.
class GroupOwner {
 public:
  virtual void on_finished(int group, Submission& submission, Result result, const Error* error) = 0;
  // All ranks have joined; before any of this rank's joins is told so.
  virtual void on_all_joined(int group) = 0;
  // All ranks agreed to make or remove a process set; called in the same order on all ranks.
  virtual void on_process_set(const Agreement& agreement, std::optional<Submission> submission) = 0;
  virtual void on_asked(int group) = 0;
  virtual void on_picture(const std::string& picture) = 0;
  virtual void say(const std::string& line) = 0;

 protected:
  ~GroupOwner() = default;
};

struct GroupOptions {
  int id = 0;
  std::vector<int> ranks;          // global, by rank within the group
  std::vector<std::string> hosts;  // by rank within the group
  Settings settings;
  std::uint32_t messages_before = 0;   // as ControlLine has it
  bool leaves_plans_silently = false;  // breaks the protocol of locked plans; a simulation must notice
};

class Group {
 public:
  Group(GroupOptions options, std::unique_ptr<Transport> transport, DataPlanes planes, PlanLane lane, GroupOwner& owner,
        Statistics& statistics);

  void submit(Submission submission);
  void leave();
  void announce_failure(const Cause& cause);
  void answer(const RankReport& report);
  // Has the coordinator tell all ranks how they stand.
  void ask_for_picture();
  // What this rank has under way here, and whom it lacks as far as it knows.
  void list_pending(std::vector<PendingCall>& pending) const;
  std::string list_missing(Clock::time_point now) const;
  void set_fusion_threshold(std::int64_t bytes);

  // Sends what is new, takes in what has come, moves the running batch. True if anything moved.
  // `awaited`: a thread of this process waits for some work, and what it submitted before has come.
  // Throws Error(kAborted) when the job cannot go on.
  bool progress(bool awaited);

  // Called now and then while this rank waits and nothing moves: tells the coordinator what stands still, asks it for a
  // sign of life if it has long been silent, and throws Error(kAborted) if it gives none.
  void look(Clock::time_point now);

  // Is there anything that only progress() can bring forward?
  bool active() const;
  bool moving_data() const { return executor_.busy() || (lane_.busy() && !lane_.at_meeting()); }
  // Nothing is under way on the planes, and nobody else needs this rank on them.
  bool settled() const { return !executor_.busy() && !lane_.busy(); }
  // Will whoever can bring this group forward wake this rank?
  bool wakes() const { return (transport_->wakes() || transport_->size() == 1) && executor_.wakes() && lane_.wakes(); }
  // Is there queued work that may yet fail? Then progress() looks after it, now and then.
  bool watching() const { return executor_.watching() || lane_.watching(); }
  bool leaving() const { return leaving_; }
  bool all_left() const { return all_left_; }
  bool flushed() { return transport_->flushed(); }

  void fail_all(const Error& error);
  // The process set was removed. Its own coordinator says what of it was agreed on and runs to its end on every rank,
  // and what fails; then all have left.
  void close();

  Transport& transport() { return *transport_; }
  const std::vector<int>& ranks() const { return options_.ranks; }

 private:
  using Key = std::pair<std::string, std::uint64_t>;

  // The locked plan (group_plan.cc).
  void vote(Submission submission);
  bool follow_plan(bool awaited);
  void on_met(const Meeting& meeting, Batch& batch);
  void depart();
  void end_plan(Batch called_off = {});
  void lock_plan(const std::vector<std::vector<Slot>>& batches);
  // Has this rank come to a meeting whose batch is not over?
  bool meeting() const { return lane_.busy(); }

  bool send_announcement();
  bool take_in_messages();
  bool coordinate();
  static StallWatch make_watch(const GroupOptions& options);
  void watch();
  void report_standing(Clock::time_point now);
  void listen_for_coordinator(Clock::time_point now);
  bool act_on(Verdict verdict);
  void start(ItemList& items);
  BatchItem to_batch_item(Item& item);
  void refuse(const Refusal& refusal);
  void finish_joins(int last);
  void fail_pending(const Error& error);
  std::optional<Submission> take(const Key& key);
  void check_own_part(const BatchItem& item) const;
  void count(const Request& request);

  GroupOptions options_;
  std::unique_ptr<Transport> transport_;
  ControlLine line_;
  GroupOwner& owner_;
  Statistics& statistics_;
  Executor executor_;
  std::unique_ptr<Transport> lane_transport_;
  const bool plans_;  // are there planes for them?
  Executor lane_;
  std::optional<LockedPlan> plan_;
  bool departing_ = false;              // at the next batch, since one of this plan has been reached already
  std::vector<Submission> late_joins_;  // to be voted for when this rank is out of the plan
  // The first makes a plan, while this rank is still leaving the one before; the others came after it.
  std::deque<Verdict> postponed_;
  ResponseCache cache_;
  std::optional<Coordinator> coordinator_;  // on rank 0
  std::optional<StallWatch> watch_;
  std::optional<Picture> picture_;
  Clock::time_point next_look_;
  // What look() goes by.
  std::uint64_t moves_ = 0;             // of data
  std::uint64_t heard_ = 0;             // verdicts
  std::vector<StandingWait> reported_;  // as told to the coordinator
  std::uint64_t moves_looked_at_ = 0;
  std::uint64_t heard_looked_at_ = 0;
  Clock::time_point still_since_;
  Clock::time_point silent_since_;
  Clock::time_point last_look_;
  bool asked_ = false;
  Announcement announcement_;  // what is to be told next
  std::map<Key, Submission> in_flight_;
  std::vector<Submission> joins_;
  std::int64_t fusion_threshold_;
  bool leaving_ = false;
  bool told_leaving_ = false;
  bool all_left_ = false;
};

}  // namespace sirtaki
