// A member's side of the response cache: the slot of each of its own requests, and the agreement stored in that slot.
// The coordinator alone decides which slots exist (coordinator_cache.h).
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "agreement/messages.h"

namespace sirtaki {

class ResponseCache {
 public:
  // The vote for this request. It names the slot if the group agreed on the same request before.
  Vote vote_for(const Request& request) const;

  // A verdict stored this agreement in `slot`. `own` is this rank's request, or null if this rank has joined.
  void remember(CacheSlot slot, std::shared_ptr<const Agreement> agreement, const Request* own);
  void forget(CacheSlot slot);

  // Throws Error(kAborted) if the slot does not exist.
  const std::shared_ptr<const Agreement>& at(CacheSlot slot) const;

  std::size_t size() const { return slots_.size(); }

 private:
  struct Entry {
    std::shared_ptr<const Agreement> agreement;
    std::string key;  // key of this rank's own request; empty if it had none
  };

  std::unordered_map<CacheSlot, Entry> slots_;
  std::unordered_map<std::string, CacheSlot> slot_by_key_;
};

}  // namespace sirtaki
