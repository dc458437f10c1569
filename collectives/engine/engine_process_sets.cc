// The process sets of a job on one rank, and the group that serves each.
#include "engine/engine.h"
#include "engine/handshake.h"

namespace sirtaki {

std::map<int, std::vector<int>> Engine::process_sets() const {
  const std::lock_guard lock(mutex_);
  std::map<int, std::vector<int>> result;
  for (const auto& [id, set] : sets_) result[id] = set.ranks;
  return result;
}

void Engine::make_group(int id, std::vector<int> ranks, std::unique_ptr<Transport> transport) {
  const int rank = index_of(ranks, topology_.rank);
  if (transport != nullptr) {
    GroupOptions options{.id = id, .ranks = ranks, .hosts = {}, .settings = options_.settings};
    if (id == 0) options.messages_before = kMessagesOfHandshake;
    std::vector<int> hosts;
    for (const int r : ranks) {
      options.hosts.push_back(hosts_[static_cast<std::size_t>(r)]);
      hosts.push_back(host_numbers_[static_cast<std::size_t>(r)]);
    }
    DataPlanes planes = make_planes(*transport, hosts);
    PlanLane lane = make_lane(*transport, hosts);
    groups_[id] = std::make_unique<Group>(std::move(options), std::move(transport), std::move(planes), std::move(lane),
                                          static_cast<GroupOwner&>(*this), statistics_);
  }
  const std::lock_guard lock(mutex_);
  sets_[id].ranks = std::move(ranks);
  sets_[id].rank = rank;
}

// A locked plan's batches run on planes of their own, since they keep no order with what is negotiated. Made together
// with the group, when all ranks are at the same point.
PlanLane Engine::make_lane(Transport& transport, const std::vector<int>& hosts) {
  PlanLane lane;
  if (!options_.settings.lock_plan || options_.settings.cache_capacity == 0 || transport.size() == 1) return lane;
  std::vector<int> all;
  for (int rank = 0; rank < transport.size(); ++rank) all.push_back(rank);
  lane.transport = transport.split(all);
  lane.planes = make_planes(*lane.transport, hosts);
  return lane;
}

DataPlanes Engine::make_planes(Transport& transport, const std::vector<int>& hosts) {
  DataPlanes planes = options_.make_planes(transport, hosts);
  for (const auto& plane : planes) plane->count_uses(plane_uses_);
  return planes;
}

void Engine::on_process_set(const Agreement& agreement, std::optional<Submission> submission) {
  Result result;
  std::optional<Error> error;
  try {
    if (agreement.request.verb == Verb::kAddProcessSet) {
      result.value = add_process_set({agreement.request.splits.begin(), agreement.request.splits.end()});
    } else {
      remove_process_set(static_cast<int>(agreement.request.splits[0]));
    }
  } catch (const Error& caught) {
    error = caught;
  }
  if (submission) on_finished(0, *submission, std::move(result), error ? &*error : nullptr);
  if (error && error->kind() != ErrorKind::kPrecondition) throw *error;
}

int Engine::add_process_set(const std::vector<int>& ranks) {
  for (const auto& [id, existing] : process_sets()) {
    if (existing == ranks) {
      throw Error(ErrorKind::kPrecondition, list_ranks(ranks) + " already form process set " + std::to_string(id));
    }
  }
  int id = next_id_;
  if (free_ids_.empty()) {
    ++next_id_;
  } else {
    id = free_ids_.front();
    free_ids_.erase(free_ids_.begin());
  }
  make_group(id, ranks, groups_[0]->transport().split(ranks));
  return id;
}

void Engine::remove_process_set(int id) {
  const Error removed(ErrorKind::kPrecondition, "process set " + std::to_string(id) + " was removed");
  {
    const std::lock_guard lock(mutex_);
    if (!sets_.contains(id)) throw removed;
  }
  if (const auto group = groups_.find(id); group != groups_.end()) {
    group->second->close();
    closing_.push_back(std::move(group->second));
    groups_.erase(group);
  }
  free_ids_.push_back(id);
  const std::lock_guard lock(mutex_);
  sets_.erase(id);
}

}  // namespace sirtaki
