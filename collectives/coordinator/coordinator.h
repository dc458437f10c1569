// Rank 0's part of negotiation in one group: counts votes, checks that all ranks request the same collective, and
// decides which batches run next. Pure logic without threads, transport or clock, so that tests and simulations can
// drive it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agreement/agreement.h"
#include "agreement/messages.h"
#include "base/clock.h"
#include "base/settings.h"
#include "coordinator/coordinator_cache.h"
#include "coordinator/cycle_finder.h"
#include "coordinator/one_gpu_check.h"

namespace sirtaki {

// A request for which some ranks have voted and others have not.
struct Waiting {
  std::string title;
  Verb verb;
  Clock::time_point since;
  std::vector<int> present;  // ranks within the group
  std::vector<int> missing;
  std::vector<std::string> sites;  // of `present`

  // The first call site that is known; empty if none is.
  std::string first_site() const;
};

class Coordinator {
 public:
  // `global_ranks`: the members' ranks in the job, for error messages.
  Coordinator(std::vector<int> global_ranks, const Settings& settings);

  // Takes in one message of rank `from` of the group.
  void receive(int from, Announcement announcement, Clock::time_point now);

  // The verdict that every member must act on now; has_content() is false if there is none. While the planes are busy,
  // ready requests are kept back, so that they form fewer and larger batches.
  // `may_plan`: no batch of an earlier locked plan is running on this rank, so that a new plan can replace it.
  Verdict decide(bool planes_busy, std::int64_t fusion_threshold, bool may_plan = false);

  // Ends the job with the next verdict. Only the first cause is kept.
  void fail(const FailureCause& cause) {
    if (!failure_) failure_ = cause;
  }
  bool fails() const { return failure_.has_value(); }
  // Makes the next verdict a heartbeat: it is sent even if it has no other content.
  void send_heartbeat() { heartbeat_due_ = true; }
  // Asks these ranks for their status with the next verdict.
  void ask(const std::vector<int>& ranks);
  // The answers that have arrived since, by rank within the group.
  const std::map<int, RankStatus>& reports() const { return reports_; }
  // Has some rank asked for the status of all ranks? Stays true until set_job_status().
  bool job_status_wanted() const { return job_status_wanted_; }
  void set_job_status(const std::string& job_status);

  // A batch of the locked plan has begun. Requests that repeat beside a plan do not form a new plan.
  void plan_moved() { cycles_.forget(); }
  // A rank has left the locked plan after it served for this many steps.
  void plan_ended(std::uint64_t steps) { cycles_.left_after(steps); }

  std::vector<Waiting> waiting() const;
  bool has_pending() const { return !pending_.empty() || !ready_.empty() || standing_count_ > 0 || job_status_wanted_; }
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }

 private:
  using Key = std::pair<std::string, std::uint64_t>;
  struct Entry {
    RequestsByRank requests;
    std::vector<CacheSlot> slots;          // by rank: the cache slot that it voted with
    std::shared_ptr<const Request> first;  // the first request that arrived
    std::size_t votes = 0;
    std::uint64_t epoch = 0;  // of rank 0's vote
    Clock::time_point since;  // the first vote
    int last = -1;            // the rank that voted last, and when
    Clock::time_point last_at;
  };
  struct Ready {
    Entry entry;
    Agreement agreement;
    std::uint64_t sequence;
  };

  std::size_t size() const { return global_ranks_.size(); }
  void count(int from, const Vote& vote, Clock::time_point now);
  void join(int from);
  void leave(int from);
  void refuse_joins();
  void note_standing(int from, const std::vector<StandingWait>& waits, Clock::time_point now);
  void note_gone();
  void decide_entry(std::map<Key, Entry>::iterator entry);
  std::string reason_to_refuse(const Key& key, const Entry& entry) const;
  void refuse(const Key& key, const std::string& message);
  Item make_item(Ready& ready, Verdict& verdict);
  void watch_cycles(const Entry& entry, std::uint64_t sequence, const Item& item);
  bool sizes_change(const std::string& name, bool now);
  void lock_plan(Verdict& verdict, std::int64_t fusion_threshold);
  void add_standing(std::vector<Waiting>& waiting) const;
  std::vector<int> global(const std::vector<int>& ranks) const;
  std::vector<int> ranks_where(const std::vector<bool>& flags) const;

  std::vector<int> global_ranks_;
  CoordinatorCache slots_;
  OneGpuCheck gpus_;
  std::map<Key, Entry> pending_;
  std::deque<Ready> ready_;
  std::vector<Refusal> refusals_;
  std::optional<Refusal> refused_joins_;  // sent once no ready request counts on the joined ranks
  std::vector<bool> joined_;
  std::vector<bool> left_;
  std::vector<std::uint64_t> seen_;
  CycleFinder cycles_;
  std::unordered_map<std::string, int> agreed_anew_;  // by name, of verbs other than allreduce: how often
  struct Standing {
    Clock::time_point since;
    std::string site;
    int peer = -1;
  };
  std::vector<std::map<std::string, Standing>> standing_;  // by rank and title: requests without progress
  std::size_t standing_count_ = 0;                         // number of entries of all ranks
  std::map<int, RankStatus> reports_;
  bool job_status_wanted_ = false;
  std::string job_status_;
  std::vector<std::int64_t> asked_;
  std::vector<std::int64_t> gone_;  // ranks that have left and that others wait for
  std::optional<FailureCause> failure_;
  bool heartbeat_due_ = false;
  std::uint64_t verdicts_ = 0;
  int joined_count_ = 0;
  int left_count_ = 0;
  int last_joined_ = -1;
  bool all_left_sent_ = false;
};

}  // namespace sirtaki
