// Members and a coordinator that exchange messages by hand, without threads or transports.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "agreement/response_cache.h"
#include "coordinator/coordinator.h"

namespace sirtaki::testing {

inline constexpr std::int64_t kFusion = 1 << 20;

inline Request allreduce(const std::string& name, Shape shape = {4}) {
  Request request;
  request.name = name;
  request.tensors = {{DType::kFloat32, kHostDevice, std::move(shape)}};
  request.site = "train.py:7";
  return request;
}

inline std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// One member as the group runs it, without its data.
class Member {
 public:
  Vote submit(const Request& request) {
    in_flight_[{request.name, request.sequence}] = request;
    return cache_.vote_for(request);
  }

  // Titles of what runs, batch by batch.
  std::vector<std::vector<std::string>> act_on(const Verdict& verdict) {
    seen = verdict.number;
    std::vector<std::vector<std::string>> ran;
    for (const ItemList& items : verdict.batches) {
      auto& batch = ran.emplace_back();
      for (const Item& item : items) batch.push_back(run(item));
    }
    for (const CacheSlot slot : verdict.forgotten) cache_.forget(slot);
    for (const Refusal& refusal : verdict.refusals) in_flight_.erase({refusal.name, refusal.sequence});
    return ran;
  }

  std::uint64_t seen = 0;
  std::size_t cached() const { return cache_.size(); }
  bool waits_for(const std::string& name) const { return in_flight_.contains({name, 0}); }

 private:
  std::string run(const Item& item) {
    const auto agreement = item.agreement ? std::make_shared<const Agreement>(*item.agreement) : cache_.at(item.slot);
    const auto own = in_flight_.extract({agreement->request.name, item.sequence});
    if (item.agreement && item.slot != kNoCacheSlot) {
      cache_.remember(item.slot, agreement, own.empty() ? nullptr : &own.mapped());
    }
    if (!own.empty() && agreement->request.verb == Verb::kAllreduce) {
      CHECK_MESSAGE(own.mapped().tensors[0].shape == agreement->request.tensors[0].shape, "runs what was asked");
    }
    Request shown = agreement->request;
    shown.sequence = item.sequence;
    return shown.title() + to_string(shown.tensors.empty() ? Shape() : shown.tensors[0].shape);
  }

  ResponseCache cache_;
  std::map<std::pair<std::string, std::uint64_t>, Request> in_flight_;
};

struct Fixture {
  explicit Fixture(int size, Settings given = {})
      : settings(given), coordinator(ranks_up_to(size), settings), members(static_cast<std::size_t>(size)) {}

  bool submit(int rank, const Request& request) {
    Member& member = members[static_cast<std::size_t>(rank)];
    Announcement announcement;
    announcement.seen = member.seen;
    announcement.votes = {member.submit(request)};
    const bool by_slot = announcement.votes[0].slot != kNoCacheSlot;
    coordinator.receive(rank, decode_announcement(encode(announcement)), now);
    return by_slot;
  }

  void leave(int rank) {
    Announcement announcement;
    announcement.leaving = true;
    coordinator.receive(rank, announcement, now);
  }

  Verdict decide(bool busy = false, bool may_plan = false) {
    const Verdict verdict = decode_verdict(encode(coordinator.decide(busy, kFusion, may_plan)));
    for (Member& member : members) last_ran = member.act_on(verdict);
    return verdict;
  }

  Settings settings;
  Coordinator coordinator;
  std::vector<Member> members;
  std::vector<std::vector<std::string>> last_ran;
  Clock::time_point now{};
};

}  // namespace sirtaki::testing
