#include "agreement/response_cache.h"

#include "base/error.h"

namespace sirtaki {
namespace {

// All that makes a request what it is, except the number that tells nameless ones apart.
std::string key_of(Request request) {
  request.sequence = 0;
  Writer writer;
  write(writer, request);
  const Bytes bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Vote ResponseCache::vote_for(const Request& request) const {
  Vote vote;
  vote.sequence = request.sequence;
  if (const auto found = slot_by_key_.find(key_of(request)); found != slot_by_key_.end()) {
    vote.slot = found->second;
  } else {
    vote.request = request;
  }
  return vote;
}

void ResponseCache::remember(CacheSlot slot, std::shared_ptr<const Agreement> agreement, const Request* own) {
  forget(slot);
  Entry entry{std::move(agreement), own == nullptr ? std::string() : key_of(*own)};
  if (own != nullptr) slot_by_key_[entry.key] = slot;
  slots_.insert_or_assign(slot, std::move(entry));
}

void ResponseCache::forget(CacheSlot slot) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return;
  const auto key = slot_by_key_.find(found->second.key);
  if (key != slot_by_key_.end() && key->second == slot) slot_by_key_.erase(key);
  slots_.erase(found);
}

const std::shared_ptr<const Agreement>& ResponseCache::at(CacheSlot slot) const {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) {
    throw Error(ErrorKind::kAborted, "the coordinator named cache slot " + std::to_string(slot) +
                                         ", which this rank does not know; please report this as a bug");
  }
  return found->second.agreement;
}

}  // namespace sirtaki
