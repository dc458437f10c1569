#include "coordinator/coordinator.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "agreement/verdict_check.h"
#include "base/topology.h"
#include "fusion/fusion.h"

namespace sirtaki {
namespace {

// A batch among many ranks needs more hand-overs between ranks, so that larger batches pay there.
std::int64_t largest_planned_batch(std::size_t ranks) {
  constexpr std::int64_t kForTwo = std::int64_t{8} << 20;
  return kForTwo * static_cast<std::int64_t>(std::bit_width(ranks - 1));
}

bool on_host(const Request& request) {
  return std::ranges::all_of(request.tensors, [](const TensorSpec& tensor) { return tensor.device == kHostDevice; });
}

std::string title_of(const std::pair<std::string, std::uint64_t>& key) {
  Request shown;
  shown.name = key.first;
  shown.sequence = key.second;
  return shown.title();
}

// A joined rank to which rows are sent, although no program would read them; -1 if there is none.
int rank_that_misses_rows(const RequestsByRank& requests, const Agreement& agreement) {
  if (agreement.request.verb != Verb::kAlltoall) return -1;
  for (std::size_t place = 0; place < agreement.sizes.size(); ++place) {
    const std::size_t to = place % requests.size();
    if (requests[to] == nullptr && agreement.sizes[place] > 0) return static_cast<int>(to);
  }
  return -1;
}

}  // namespace

Coordinator::Coordinator(std::vector<int> global_ranks, const Settings& settings)
    : global_ranks_(std::move(global_ranks)),
      slots_(settings.cache_capacity),
      gpus_(size()),
      joined_(size()),
      left_(size()),
      seen_(size()),
      standing_(size()) {}

void Coordinator::receive(int from, Announcement announcement, Clock::time_point now) {
  const auto rank = static_cast<std::size_t>(from);
  seen_[rank] = std::max(seen_[rank], announcement.seen);
  if (announcement.report.has_value()) reports_[from] = *announcement.report;
  job_status_wanted_ |= announcement.wants_job_status;
  if (announcement.failure.has_value()) fail(*announcement.failure);
  if (announcement.standing.has_value()) note_standing(from, *announcement.standing, now);
  if (announcement.wants_heartbeat) send_heartbeat();
  for (const Vote& vote : announcement.votes) count(from, vote, now);
  if (announcement.leaving) leave(from);
}

void Coordinator::note_standing(int from, const std::vector<StandingWait>& waits, Clock::time_point now) {
  std::map<std::string, Standing>& before = standing_[static_cast<std::size_t>(from)];
  standing_count_ -= before.size();
  std::map<std::string, Standing> after;
  for (const StandingWait& wait : waits) {
    check_standing(wait, static_cast<int>(size()));
    const auto known = before.find(wait.title);
    after[wait.title] = {known == before.end() ? now : known->second.since, wait.site, wait.peer};
  }
  before = std::move(after);
  standing_count_ += before.size();
  note_gone();
}

// A rank that has left neither sends nor receives any more, so waits for it must end.
void Coordinator::note_gone() {
  if (left_count_ == 0 || standing_count_ == 0) return;
  for (const auto& waits : standing_) {
    for (const auto& [title, standing] : waits) {
      if (standing.peer < 0 || !left_[static_cast<std::size_t>(standing.peer)]) continue;
      if (std::ranges::find(gone_, standing.peer) == gone_.end()) gone_.push_back(standing.peer);
    }
  }
}

void Coordinator::count(int from, const Vote& vote, Clock::time_point now) {
  check_vote(vote, static_cast<int>(size()));
  const auto rank = static_cast<std::size_t>(from);
  const auto request =
      vote.slot == kNoCacheSlot ? std::make_shared<const Request>(vote.request) : slots_.request_of(vote.slot, from);
  if (request->verb == Verb::kJoin) return join(from);
  const auto [position, is_new] = pending_.try_emplace(Key{request->name, vote.sequence});
  Entry& entry = position->second;
  if (is_new) {
    entry.requests.resize(size());
    entry.slots.assign(size(), kNoCacheSlot);
    entry.since = now;
  }
  // Equal requests share one copy, so that remembering them costs little however many ranks there are.
  if (entry.first == nullptr) entry.first = request;
  if (entry.requests[rank] == nullptr) ++entry.votes;
  entry.requests[rank] = *entry.first == *request ? entry.first : request;
  entry.slots[rank] = vote.slot;
  if (rank == 0) entry.epoch = vote.epoch;
  entry.last = from;
  entry.last_at = now;
  decide_entry(position);
}

void Coordinator::join(int from) {
  if (joined_[static_cast<std::size_t>(from)]) return;  // several threads of that rank may call join()
  if (left_count_ > 0) return refuse_joins();
  joined_[static_cast<std::size_t>(from)] = true;
  ++joined_count_;
  last_joined_ = from;
  for (auto entry = pending_.begin(); entry != pending_.end();) decide_entry(entry++);
}

void Coordinator::leave(int from) {
  const auto rank = static_cast<std::size_t>(from);
  if (left_[rank]) return;
  left_[rank] = true;
  ++left_count_;
  if (joined_count_ > 0) refuse_joins();
  note_gone();
  for (auto entry = pending_.begin(); entry != pending_.end();) decide_entry(entry++);
}

// After one rank has left, the ranks can never all have joined.
void Coordinator::refuse_joins() {
  refused_joins_ = {"", 0,
                    "join() cannot complete: " + list_ranks(global(ranks_where(left_))) +
                        " left early, without calling join() (shut down, or the program ended there). Every rank must "
                        "call join() when it is done."};
  joined_.assign(size(), false);
  joined_count_ = 0;
}

// Decides an entry if all votes are there, or refuses it if it can never complete.
void Coordinator::decide_entry(std::map<Key, Entry>::iterator position) {
  Entry& entry = position->second;
  const std::string refusal = reason_to_refuse(position->first, entry);
  if (!refusal.empty()) {
    refuse(position->first, refusal);
    pending_.erase(position);
    return;
  }
  // Nearly every vote returns here. The loop over all ranks below then runs once for a request, not once for a vote.
  if (entry.votes + static_cast<std::size_t>(joined_count_) < size()) return;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (entry.requests[rank] == nullptr && !joined_[rank]) return;
  }
  std::string mismatch = find_mismatch(entry.requests, global_ranks_);
  if (mismatch.empty()) mismatch = gpus_.check(entry.requests, global_ranks_);
  Agreement agreement;
  if (mismatch.empty()) {
    agreement = agree(entry.requests);
    if (const int lost = rank_that_misses_rows(entry.requests, agreement); lost >= 0) {
      mismatch = "'" + title_of(position->first) + "': alltoall cannot run, since rows are sent to " +
                 list_ranks(global({lost})) + ", which called join(). Send it none, by splits.";
    }
  }
  if (mismatch.empty()) {
    agreement.request.sequence = 0;
    ready_.push_back({std::move(entry), std::move(agreement), position->first.second});
  } else {
    refuse(position->first, mismatch);
  }
  pending_.erase(position);
}

std::string Coordinator::reason_to_refuse(const Key& key, const Entry& entry) const {
  if (left_count_ == 0 && joined_count_ == 0) return "";
  const std::string title = title_of(key);
  // A request can still complete if the rank that left had voted for it before.
  bool lacks_left = false;
  for (std::size_t rank = 0; rank < size(); ++rank) lacks_left |= left_[rank] && entry.requests[rank] == nullptr;
  if (lacks_left) {
    return "'" + title + "' cannot complete: " + list_ranks(global(ranks_where(left_))) +
           " left early (shut down, the program ended there, or the process set was removed). Make every rank do the "
           "same number of steps, or call "
           "join() on the ranks that are done.";
  }
  std::vector<int> joined;
  for (const int rank : ranks_where(joined_)) {
    if (entry.requests[static_cast<std::size_t>(rank)] == nullptr) joined.push_back(rank);
  }
  if (joined.empty()) return "";
  const auto& request = entry.first;
  const bool scales_neutral =
      request->op != ReduceOp::kSum && request->op != ReduceOp::kAverage && request->prescale != 1;
  if (request->verb == Verb::kAllreduce && scales_neutral) {
    return "'" + title + "': " + std::string(name_of(request->op)) + " with a prescale_factor cannot run, since " +
           list_ranks(global(joined)) + " called join() and what they contribute would be scaled too.";
  }
  if (request->verb == Verb::kAllreduce || request->verb == Verb::kBarrier) return "";
  const std::string cannot = "'" + title + "': " + std::string(name_of(request->verb)) + " cannot run, since ";
  const bool gives_rows = request->verb == Verb::kAllgather || request->verb == Verb::kAlltoall;
  if (on_host(*request) && gives_rows) return "";
  if (on_host(*request) && request->verb == Verb::kBroadcast) {
    const bool lacks_root = std::find(joined.begin(), joined.end(), request->root) != joined.end();
    return lacks_root ? cannot + "its root, " + list_ranks(global({request->root})) + ", called join()." : "";
  }
  return cannot + list_ranks(global(joined)) +
         " called join(). A rank that has joined can take part in allreduce and barrier, and in allgather, broadcast "
         "and alltoall in host memory, until all ranks have joined.";
}

void Coordinator::refuse(const Key& key, const std::string& message) {
  refusals_.push_back({key.first, key.second, message});
}

Verdict Coordinator::decide(bool planes_busy, std::int64_t fusion_threshold, bool may_plan) {
  Verdict verdict;
  verdict.number = verdicts_ + 1;
  verdict.refusals = std::exchange(refusals_, {});
  verdict.asked = std::exchange(asked_, {});
  verdict.gone = std::exchange(gone_, {});
  verdict.alive = std::exchange(heartbeat_due_, false);
  verdict.job_status = std::exchange(job_status_, "");
  verdict.failure = failure_;
  if (!ready_.empty() && !planes_busy) {
    std::vector<const Request*> requests;
    for (const Ready& ready : ready_) requests.push_back(&ready.agreement.request);
    for (const std::vector<std::size_t>& members : plan(requests, fusion_threshold)) {
      ItemList& batch = verdict.batches.emplace_back();
      for (const std::size_t member : members) {
        Ready& ready = ready_[member];
        batch.push_back(make_item(ready, verdict));
        if (may_plan) watch_cycles(ready.entry, ready.sequence, batch.back());
      }
    }
    ready_.clear();
    if (may_plan) lock_plan(verdict, fusion_threshold);
  }
  if (refused_joins_ && ready_.empty()) {
    verdict.refusals.push_back(*refused_joins_);
    refused_joins_.reset();
  }
  if (joined_count_ == static_cast<int>(size()) && ready_.empty()) {
    verdict.last_joined = std::exchange(last_joined_, -1);
    joined_.assign(size(), false);
    joined_count_ = 0;
  }
  if (left_count_ == static_cast<int>(size()) && ready_.empty() && !all_left_sent_)
    verdict.all_left = all_left_sent_ = true;
  if (verdict.has_content()) ++verdicts_;
  return verdict;
}

Item Coordinator::make_item(Ready& ready, Verdict& verdict) {
  Item item;
  item.sequence = ready.sequence;
  item.arrival = {ready.entry.last, ready.entry.last_at - ready.entry.since, ready.entry.last_at};
  std::optional<CacheSlot> voted;
  bool by_one_slot = true;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (ready.entry.requests[rank] == nullptr) continue;
    ++item.contributors;
    by_one_slot &= !voted || *voted == ready.entry.slots[rank];
    voted = ready.entry.slots[rank];
  }
  const Verb verb = ready.agreement.request.verb;
  // The numbers of rows that are stored count every rank.
  const bool lacks_rows = !ready.agreement.sizes.empty() && item.contributors < static_cast<int>(size());
  // The cached agreement is valid only if every rank voted with the same slot.
  if (by_one_slot && !lacks_rows && voted && slots_.is_live(*voted)) {
    item.slot = *voted;
    slots_.touch(item.slot);
    return item;
  }
  const bool repeats = verb != Verb::kAddProcessSet && verb != Verb::kRemoveProcessSet && !lacks_rows;
  if (repeats) {
    // A rank that has sent nothing since a verdict may still vote with a slot that this verdict removed. A rank that
    // has joined acts on all verdicts before it votes again, so it does not count here.
    std::uint64_t seen = std::numeric_limits<std::uint64_t>::max();
    for (std::size_t rank = 0; rank < size(); ++rank) seen = std::min(seen, joined_[rank] ? seen : seen_[rank]);
    slots_.release_until(seen);
    item.slot = slots_.add(ready.entry.requests, verdict.number, verdict.forgotten);
  }
  item.agreement = std::move(ready.agreement);
  return item;
}

// A plan can hold only named requests that every rank makes. Tensors on GPUs are voted on in each step: a plan has data
// planes of its own, and NCCL requires one order of all collectives of a GPU on all ranks.
void Coordinator::watch_cycles(const Entry& entry, std::uint64_t sequence, const Item& item) {
  const Request& request = *entry.first;
  if (!moves_data(request.verb) || sequence != 0 || !on_host(request)) return;
  if (request.verb != Verb::kAllreduce && sizes_change(request.name, item.agreement.has_value())) return;
  if (item.agreement || item.contributors < static_cast<int>(size())) return cycles_.forget();
  cycles_.add({item.slot, entry.epoch});
}

// Are the sizes of this name (sparse gradients, the last batch of an epoch) new in this step, or were they new often?
// Then the name is voted on in each step, and does not keep the other names of the step from a plan.
bool Coordinator::sizes_change(const std::string& name, bool now) {
  constexpr int kOften = 4;               // the first time counts, too
  constexpr std::size_t kNames = 10'000;  // a program may make a name for each call
  const auto found = agreed_anew_.find(name);
  if (!now) return found != agreed_anew_.end() && found->second >= kOften;
  if (found == agreed_anew_.end() && agreed_anew_.size() >= kNames) agreed_anew_.clear();
  ++agreed_anew_[name];
  return true;
}

void Coordinator::lock_plan(Verdict& verdict, std::int64_t fusion_threshold) {
  if (left_count_ > 0 || joined_count_ > 0) return;
  const auto cycle = cycles_.take();
  if (!cycle) return;
  const std::int64_t limit = std::min(fusion_threshold, largest_planned_batch(size()));
  for (std::size_t begin = 0, end = 0; begin < cycle->size(); begin = end) {
    std::vector<const Request*> requests;
    for (; end < cycle->size() && (*cycle)[end].epoch == (*cycle)[begin].epoch; ++end) {
      requests.push_back(slots_.request_of((*cycle)[end].slot, 0).get());
    }
    for (const std::vector<std::size_t>& members : plan(requests, limit)) {
      std::vector<CacheSlot>& batch = verdict.plan.emplace_back();
      for (const std::size_t member : members) batch.push_back((*cycle)[begin + member].slot);
    }
  }
}

void Coordinator::set_job_status(const std::string& job_status) {
  job_status_ = job_status;
  job_status_wanted_ = false;
}

void Coordinator::ask(const std::vector<int>& ranks) {
  reports_.clear();
  asked_.assign(ranks.begin(), ranks.end());
}

std::string Waiting::first_site() const {
  const auto site = std::ranges::find_if(sites, [](const std::string& s) { return !s.empty(); });
  return site == sites.end() ? "" : *site;
}

std::vector<Waiting> Coordinator::waiting() const {
  std::vector<Waiting> result;
  for (const auto& [key, entry] : pending_) {
    Waiting waiting{"", Verb::kAllreduce, entry.since, {}, {}, {}};
    for (std::size_t rank = 0; rank < size(); ++rank) {
      if (entry.requests[rank] == nullptr) {
        if (!joined_[rank]) waiting.missing.push_back(static_cast<int>(rank));
        continue;
      }
      waiting.present.push_back(static_cast<int>(rank));
      waiting.sites.push_back(entry.requests[rank]->site);
      waiting.verb = entry.requests[rank]->verb;
    }
    waiting.title = title_of(key);
    result.push_back(std::move(waiting));
  }
  add_standing(result);
  return result;
}

void Coordinator::add_standing(std::vector<Waiting>& result) const {
  if (standing_count_ == 0) return;
  std::map<std::string, Waiting> by_title;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    for (const auto& [name, standing] : standing_[rank]) {
      if (standing.peer >= 0) {
        result.push_back(
            {name, Verb::kReceive, standing.since, {static_cast<int>(rank)}, {standing.peer}, {standing.site}});
        continue;
      }
      const auto [position, is_new] = by_title.try_emplace(name);
      Waiting& waiting = position->second;
      if (is_new) waiting = {name, Verb::kAllreduce, standing.since, {}, {}, {}};
      waiting.since = std::min(waiting.since, standing.since);
      waiting.present.push_back(static_cast<int>(rank));
      waiting.sites.push_back(standing.site);
    }
  }
  for (auto& [title, waiting] : by_title) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      const bool present = std::ranges::binary_search(waiting.present, static_cast<int>(rank));
      if (!present && !joined_[rank]) waiting.missing.push_back(static_cast<int>(rank));
    }
    result.push_back(std::move(waiting));
  }
}

std::vector<int> Coordinator::global(const std::vector<int>& ranks) const {
  std::vector<int> result;
  for (const int rank : ranks) result.push_back(global_ranks_[static_cast<std::size_t>(rank)]);
  return result;
}

std::vector<int> Coordinator::ranks_where(const std::vector<bool>& flags) const {
  std::vector<int> result;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    if (flags[rank]) result.push_back(static_cast<int>(rank));
  }
  return result;
}

}  // namespace sirtaki
