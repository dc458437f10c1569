// The coordinator's side of the response cache: the requests that the group has agreed on, by slot number. With a slot
// number, a member votes for such a request again in a few bytes.
//
// Votes that are on their way may still name a slot that was evicted. So the content of an evicted slot is kept until
// every member has acted on the verdict that announced the eviction. Slot numbers are never used twice, so that a slot
// cannot be mistaken for another one.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "agreement/agreement.h"

namespace sirtaki {

class CoordinatorCache {
 public:
  explicit CoordinatorCache(int capacity) : capacity_(capacity) {}

  // The request of member `rank` when the slot was made. Throws Error(kAborted) for a number that was never assigned.
  const std::shared_ptr<const Request>& request_of(CacheSlot slot, int rank) const;

  // Stores these requests and returns their slot, or kNoCacheSlot if the capacity is zero. It may evict the least
  // recently used slot and then appends its number to `forgotten`. Verdict number `verdict` must announce it.
  CacheSlot add(const RequestsByRank& requests, std::uint64_t verdict, std::vector<CacheSlot>& forgotten);

  bool is_live(CacheSlot slot) const { return live_.contains(slot); }
  void touch(CacheSlot slot);

  // Every member has acted on all verdicts up to and including this one.
  void release_until(std::uint64_t verdict);

  std::size_t size() const { return live_.size(); }

 private:
  struct Live {
    RequestsByRank requests;  // a single one if all ranks' requests are equal, to save memory with many ranks
    std::list<CacheSlot>::iterator position;
  };
  struct Evicted {
    CacheSlot slot;
    std::uint64_t verdict;
  };

  void evict_oldest(std::uint64_t verdict, std::vector<CacheSlot>& forgotten);

  int capacity_;
  CacheSlot next_ = 0;
  std::list<CacheSlot> by_use_;  // the most recently used first
  std::unordered_map<CacheSlot, Live> live_;
  std::unordered_map<CacheSlot, RequestsByRank> evicted_;
  std::deque<Evicted> evictions_;
};

}  // namespace sirtaki
