#include "coordinator/coordinator_cache.h"

#include <algorithm>

#include "base/error.h"

namespace sirtaki {
namespace {

RequestsByRank compact(const RequestsByRank& requests) {
  const bool alike =
      !requests.empty() && requests.front() != nullptr &&
      std::all_of(requests.begin(), requests.end(), [&](const auto& r) { return r == requests.front(); });
  return alike ? RequestsByRank{requests.front()} : requests;
}

const std::shared_ptr<const Request>& of_rank(const RequestsByRank& requests, int rank) {
  return requests.size() == 1 ? requests.front() : requests[static_cast<std::size_t>(rank)];
}

}  // namespace

const std::shared_ptr<const Request>& CoordinatorCache::request_of(CacheSlot slot, int rank) const {
  const auto live = live_.find(slot);
  const auto evicted = evicted_.find(slot);
  const RequestsByRank* requests = nullptr;
  if (live != live_.end()) {
    requests = &live->second.requests;
  } else if (evicted != evicted_.end()) {
    requests = &evicted->second;
  }
  if (requests == nullptr || of_rank(*requests, rank) == nullptr) {
    throw Error(ErrorKind::kAborted, "rank " + std::to_string(rank) + " voted for cache slot " + std::to_string(slot) +
                                         ", which it was never given; please report this as a bug");
  }
  return of_rank(*requests, rank);
}

CacheSlot CoordinatorCache::add(const RequestsByRank& requests, std::uint64_t verdict,
                                std::vector<CacheSlot>& forgotten) {
  if (capacity_ == 0) return kNoCacheSlot;
  if (live_.size() >= static_cast<std::size_t>(capacity_)) evict_oldest(verdict, forgotten);
  const CacheSlot slot = next_++;
  by_use_.push_front(slot);
  live_[slot] = {compact(requests), by_use_.begin()};
  return slot;
}

void CoordinatorCache::touch(CacheSlot slot) {
  const auto live = live_.find(slot);
  if (live != live_.end()) by_use_.splice(by_use_.begin(), by_use_, live->second.position);
}

void CoordinatorCache::evict_oldest(std::uint64_t verdict, std::vector<CacheSlot>& forgotten) {
  const CacheSlot slot = by_use_.back();
  by_use_.pop_back();
  evicted_[slot] = std::move(live_[slot].requests);
  live_.erase(slot);
  evictions_.push_back({slot, verdict});
  forgotten.push_back(slot);
}

void CoordinatorCache::release_until(std::uint64_t verdict) {
  while (!evictions_.empty() && evictions_.front().verdict <= verdict) {
    evicted_.erase(evictions_.front().slot);
    evictions_.pop_front();
  }
}

}  // namespace sirtaki
