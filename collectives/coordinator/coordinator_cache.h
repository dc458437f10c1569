// The coordinator's side of the response cache: requests that the group has agreed on, by slot number, so that a member
// can vote for one again, and learn of its batch, with a few bytes.
//
// A slot that is evicted may still be named by votes that are under way. Its content is therefore kept aside until
// every member has acted on the verdict that told it to forget the slot. Numbers are never used again, so that what was
// agreed under one cannot be taken for something else.
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

  // What member `rank` asked when the slot was made. Throws Error(kAborted) for a number that was never given out.
  const std::shared_ptr<const Request>& request_of(CacheSlot slot, int rank) const;

  // A number for these requests, or kNoCacheSlot if there is no room at all. May evict the one used longest ago, whose
  // number is then appended to `forgotten`, to be announced in the verdict with this number.
  CacheSlot add(const RequestsByRank& requests, std::uint64_t verdict, std::vector<CacheSlot>& forgotten);

  bool is_live(CacheSlot slot) const { return live_.contains(slot); }
  void touch(CacheSlot slot);

  // Every member has acted on all verdicts up to and including this one.
  void release_until(std::uint64_t verdict);

  std::size_t size() const { return live_.size(); }

 private:
  struct Live {
    RequestsByRank requests;  // one alone if all ranks asked the same, so that a slot costs little with many ranks
    std::list<CacheSlot>::iterator position;
  };
  struct Evicted {
    CacheSlot slot;
    std::uint64_t verdict;
  };

  void evict_oldest(std::uint64_t verdict, std::vector<CacheSlot>& forgotten);

  int capacity_;
  CacheSlot next_ = 0;
  std::list<CacheSlot> by_use_;  // the most recent first
  std::unordered_map<CacheSlot, Live> live_;
  std::unordered_map<CacheSlot, RequestsByRank> evicted_;
  std::deque<Evicted> evictions_;
};

}  // namespace sirtaki
