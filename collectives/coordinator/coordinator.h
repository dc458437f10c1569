// Rank 0's part of negotiation in one group: counts votes, checks that the ranks ask for the same, and decides what
// runs next, in which batches. Pure logic: no threads, no transport, no clock of its own, so tests and simulations
// drive it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agreement/agreement.h"
#include "agreement/messages.h"
#include "base/clock.h"
#include "base/settings.h"
#include "coordinator/coordinator_cache.h"
#include "coordinator/cycle_finder.h"
#include "coordinator/one_gpu_check.h"

namespace sirtaki {

// A request that some ranks have made and others have not.
struct Waiting {
  std::string title;
  Verb verb;
  Clock::time_point since;
  std::vector<int> present;  // ranks within the group
  std::vector<int> missing;
  std::vector<std::string> sites;  // of `present`

  // Of those that are known; empty if none is.
  std::string first_site() const;
};

class Coordinator {
 public:
  // `global_ranks`: the members, for messages.
  Coordinator(std::vector<int> global_ranks, const Settings& settings);

  void hear(int from, Announcement announcement, Clock::time_point now);

  // What every member has to act on now; says_something() is false if nothing. While the planes are busy, what is ready
  // is held back so that it travels in fewer and larger batches.
  // `may_plan`: no meeting of an earlier plan is under way on this rank, so that a new one can take its place.
  Verdict decide(bool planes_busy, std::int64_t fusion_threshold, bool may_plan = false);

  // The first cause counts.
  void fail(const FailureCause& cause) {
    if (!failure_) failure_ = cause;
  }
  bool fails() const { return failure_.has_value(); }
  // The next verdict goes out even if it says nothing else.
  void show_life() { shows_life_ = true; }
  // Has these ranks say how they stand.
  void ask(const std::vector<int>& ranks);
  // What has arrived since, by rank within the group.
  const std::map<int, RankStatus>& reports() const { return reports_; }
  // Somebody wants to know how all ranks stand; until tell_picture().
  bool job_status_wanted() const { return job_status_wanted_; }
  void tell_picture(const std::string& job_status);

  // A batch of the plan was begun: what repeats beside it is no step of its own.
  void plan_moved() { cycles_.forget(); }
  // Somebody has left the plan, which had served for so many steps.
  void plan_ended(std::uint64_t steps) { cycles_.left_after(steps); }

  std::vector<Waiting> waiting() const;
  bool has_pending() const { return !pending_.empty() || !ready_.empty() || standing_count_ > 0 || job_status_wanted_; }
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }

 private:
  using Key = std::pair<std::string, std::uint64_t>;
  struct Entry {
    RequestsByRank requests;
    std::vector<CacheSlot> slots;          // what each rank voted with
    std::shared_ptr<const Request> first;  // of those that came in
    std::size_t votes = 0;
    std::uint64_t epoch = 0;  // of rank 0's vote
    Clock::time_point since;
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
  void settle(std::map<Key, Entry>::iterator entry);
  std::string reason_to_refuse(const Key& key, const Entry& entry) const;
  void refuse(const Key& key, const std::string& message);
  Item make_item(Ready& ready, Verdict& verdict);
  void watch_cycles(const Entry& entry, std::uint64_t sequence, const Item& item);
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
  std::optional<Refusal> refused_joins_;  // told once all is under way that counts on them
  std::vector<bool> joined_;
  std::vector<bool> left_;
  std::vector<std::uint64_t> seen_;
  CycleFinder cycles_;
  struct Standing {
    Clock::time_point since;
    std::string site;
  };
  std::vector<std::map<std::string, Standing>> standing_;  // by rank and title: what does not move there
  std::size_t standing_count_ = 0;                         // of all ranks
  std::map<int, RankStatus> reports_;
  bool job_status_wanted_ = false;
  std::string job_status_;
  std::vector<std::int64_t> asked_;
  std::optional<FailureCause> failure_;
  bool shows_life_ = false;
  std::uint64_t verdicts_ = 0;
  int joined_count_ = 0;
  int left_count_ = 0;
  int last_joined_ = -1;
  bool told_all_left_ = false;
};

}  // namespace sirtaki
