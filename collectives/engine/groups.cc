#include "engine/groups.h"

#include <algorithm>

namespace sirtaki {
namespace {

bool has_ended(const std::unique_ptr<Group>& group) {
  return group->all_left() && group->planes_idle() && group->flushed();
}

}  // namespace

Group* Groups::find(int id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

void Groups::close(int id) {
  const auto group = groups_.find(id);
  if (group == groups_.end()) return;
  group->second->close();
  closing_.push_back(std::move(group->second));
  groups_.erase(group);
}

bool Groups::progress(bool awaited) {
  bool moved = false;
  // During progress() a group may add or close other groups, but never itself.
  for (auto group = groups_.begin(); group != groups_.end();) {
    const int id = group->first;
    moved |= group->second->progress(awaited);
    group = groups_.upper_bound(id);
  }
  for (auto& group : closing_) moved |= group->progress(awaited);
  std::erase_if(closing_, has_ended);
  if (mailbox_ != nullptr) moved |= mailbox_->progress();
  return moved;
}

Activity Groups::activity() const {
  Activity result;
  bool watching = false;
  const auto add = [&](Group& group) {
    result.active |= group.active() || !group.flushed();
    result.moving_data |= group.moving_data();
    result.peers_wake &= group.wakes();
    watching |= group.watching();
  };
  for (const auto& [id, group] : groups_) add(*group);
  for (const auto& group : closing_) add(*group);
  result.active |= !closing_.empty();
  if (mailbox_ != nullptr && mailbox_->active()) {
    result.active = true;
    result.moving_data |= mailbox_->moving_data();
    result.peers_wake &= mailbox_->wakes();
  }
  if (!result.peers_wake || watching) result.longest_sleep = kIdleLook;
  return result;
}

void Groups::look(Clock::time_point now) {
  for (auto& [id, group] : groups_) group->look(now);
  for (auto& group : closing_) group->look(now);
}

bool Groups::wait_for(int rank) const {
  const auto waits = [rank](const std::unique_ptr<Group>& group) { return group->waits_for(rank); };
  return std::ranges::any_of(groups_, [&](const auto& group) { return waits(group.second); }) ||
         std::ranges::any_of(closing_, waits) || (mailbox_ != nullptr && mailbox_->waits_for(rank));
}

void Groups::leave() {
  for (auto& [id, group] : groups_) {
    if (!group->leaving()) group->leave();
  }
}

bool Groups::ended() const {
  return closing_.empty() && std::ranges::all_of(groups_, [](const auto& group) { return has_ended(group.second); });
}

void Groups::fail_all(const Error& error) {
  for (auto& [id, group] : groups_) group->fail_all(error);
  for (auto& group : closing_) group->fail_all(error);
  if (mailbox_ != nullptr) mailbox_->fail_all(error);
}

void Groups::set_fusion_threshold(std::int64_t bytes) {
  for (auto& [id, group] : groups_) group->set_fusion_threshold(bytes);
}

std::vector<PendingCall> Groups::pending() const {
  std::vector<PendingCall> pending;
  for (const auto& [id, group] : groups_) group->list_pending(pending);
  for (const auto& group : closing_) group->list_pending(pending);
  if (mailbox_ != nullptr) mailbox_->list_pending(pending);
  return pending;
}

std::string Groups::oldest_pending() const {
  const std::vector<PendingCall> calls = pending();
  const auto oldest = std::ranges::min_element(calls, {}, &PendingCall::since);
  return oldest == calls.end() ? ""
                               : ": " + std::string(name_of(oldest->verb)) + " '" + oldest->title + "'" +
                                     (oldest->site.empty() ? "" : " from " + oldest->site);
}

std::string Groups::describe_pending(Clock::time_point now) const {
  std::vector<PendingCall> pending = this->pending();
  std::string missing;
  for (const auto& [id, group] : groups_) missing += group->list_missing(now);
  const std::string count = pending.empty() ? "none pending" : std::to_string(pending.size()) + " pending";
  return count + list_pending(std::move(pending), now) + missing;
}

}  // namespace sirtaki
