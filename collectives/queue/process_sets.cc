#include "queue/process_sets.h"

#include <algorithm>

#include "base/error.h"
#include "base/topology.h"
#include "queue/request_check.h"

namespace sirtaki {

bool is_about_members_only_set(const Request& request) {
  if (request.verb == Verb::kAddProcessSet) return request.root >= 0;
  return request.verb == Verb::kRemoveProcessSet && request.splits[0] >= kFirstMembersOnlySet;
}

void ProcessSets::add(int id, std::vector<int> ranks) {
  ProcessSet& set = sets_[id];
  set.rank = index_of(ranks, rank_);
  set.ranks = std::move(ranks);
}

ProcessSet* ProcessSets::find(int id) {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : &found->second;
}

std::optional<int> ProcessSets::id_of(const std::vector<int>& ranks) const {
  for (const auto& [id, set] : sets_) {
    if (set.ranks == ranks) return id;
  }
  return std::nullopt;
}

int ProcessSets::unused_id() const {
  int id = 0;
  while (sets_.contains(id)) ++id;
  return id;
}

std::map<int, std::vector<int>> ProcessSets::ranks() const {
  std::map<int, std::vector<int>> result;
  for (const auto& [id, set] : sets_) result[id] = set.ranks;
  return result;
}

ProcessSet& ProcessSets::member_set(int id, const Request& request) {
  ProcessSet* const set = find(id);
  if (set == nullptr) refuse_request(request, "there is no process set " + std::to_string(id));
  if (set->rank < 0) {
    refuse_request(request, "rank " + std::to_string(rank_) + " is not in process set " + std::to_string(id) +
                                ", which consists of " + list_ranks(set->ranks));
  }
  return *set;
}

void ProcessSets::resolve_ranks(const ProcessSet& set, Request& request) const {
  if (request.verb == Verb::kBroadcast) {
    const int root = index_of(set.ranks, request.root);
    if (root < 0) {
      refuse_request(request, "root rank " + std::to_string(request.root) + " is not among " + list_ranks(set.ranks));
    }
    request.root = root;
  } else if (is_point_to_point(request.verb)) {
    if (index_of(set.ranks, request.root) < 0) {
      refuse_request(request, "rank " + std::to_string(request.root) + " is not among " + list_ranks(set.ranks));
    }
  } else if (request.verb == Verb::kAddProcessSet) {
    check_new_set(request);
  } else if (request.verb == Verb::kRemoveProcessSet) {
    const bool exists = request.splits.size() == 1 && sets_.contains(static_cast<int>(request.splits[0]));
    if (!exists || request.splits[0] == 0) {
      refuse_request(request, "process set " + to_string(request.splits) + " cannot be removed");
    }
  } else if (request.verb == Verb::kJoin && static_cast<int>(set.ranks.size()) != job_size_) {
    refuse_request(request, "works on the global process set only");
  }
}

void ProcessSets::check_new_set(Request& request) const {
  std::ranges::sort(request.splits);
  if (request.splits.empty()) refuse_request(request, "no ranks were given");
  for (std::size_t i = 0; i < request.splits.size(); ++i) {
    const std::string shown = std::to_string(request.splits[i]);
    if (request.splits[i] < 0 || request.splits[i] >= job_size_) {
      refuse_request(request, "rank " + shown + " does not exist; there are " + std::to_string(job_size_) + " ranks");
    }
    if (i > 0 && request.splits[i] == request.splits[i - 1])
      refuse_request(request, "rank " + shown + " is given twice");
  }
  const std::vector<int> ranks(request.splits.begin(), request.splits.end());
  if (is_about_members_only_set(request)) {
    const bool valid = request.root >= kFirstMembersOnlySet && request.root < kEndOfProcessSets;
    if (!valid || sets_.contains(request.root))
      refuse_request(request, "id " + std::to_string(request.root) + " is not free");
    if (index_of(ranks, rank_) < 0)
      refuse_request(request, "rank " + std::to_string(rank_) + " is not among " + list_ranks(ranks));
    return;
  }
  if (const std::optional<int> id = id_of(ranks)) {
    refuse_request(request, list_ranks(ranks) + " already form process set " + std::to_string(*id));
  }
}

}  // namespace sirtaki
