// A member's side of the response cache: which slot stands for which request of its own, and what was agreed about it.
// The coordinator decides what is in it (slots.h).
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "agreement/messages.h"

namespace sirtaki {

class ResponseCache {
 public:
  // The vote for this request: by slot if the group agreed on it before.
  Vote vote_for(const Request& request) const;

  // A verdict gave `slot` to this agreement. `own` is what this rank had asked, or null while it has joined.
  void remember(CacheSlot slot, std::shared_ptr<const Agreement> agreement, const Request* own);
  void forget(CacheSlot slot);

  // Throws Error(kAborted) if the slot is not known.
  const std::shared_ptr<const Agreement>& at(CacheSlot slot) const;

  std::size_t size() const { return slots_.size(); }

 private:
  struct Entry {
    std::shared_ptr<const Agreement> agreement;
    std::string key;  // of this rank's own request; empty if it had none
  };

  std::unordered_map<CacheSlot, Entry> slots_;
  std::unordered_map<std::string, CacheSlot> slot_by_key_;
};

}  // namespace sirtaki
