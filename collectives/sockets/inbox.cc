#include "sockets/inbox.h"

#include <algorithm>
#include <cstring>

#include "sockets/connection.h"

namespace sirtaki {
namespace {

void detach(FrameTarget& target) {
  if (target.source != nullptr) target.source->redirect(nullptr);
}

}  // namespace

bool Inbox::take(Message& message) {
  if (messages_.empty()) return false;
  message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

void Inbox::post(Receive& receive) {
  const auto found = std::ranges::find_if(
      early_, [&](const auto& early) { return early->from == receive.from && early->tag == receive.tag; });
  if (found == early_.end()) {
    posted_.push_back(&receive);
    return;
  }
  const std::unique_ptr<Early> early = std::move(*found);
  early_.erase(found);
  if (early->memory.size() != receive.memory.size()) {
    receive.wrong_length = early->memory.size();
    detach(*early);
    return;
  }
  std::memcpy(receive.memory.data(), early->memory.data(), early->received);
  receive.received = early->received;
  if (early->source == nullptr) return;
  early->source->redirect(&receive);
  arriving_.push_back(&receive);
}

void Inbox::withdraw(Receive& receive) {
  detach(receive);
  std::erase(posted_, &receive);
  std::erase(arriving_, &receive);
}

void Inbox::withdraw_all() {
  for (Receive* const receive : arriving_) detach(*receive);
  for (const auto& early : early_) detach(*early);
  posted_.clear();
  arriving_.clear();
  early_.clear();
}

FrameTarget* Inbox::begin(int from, int tag, std::uint64_t length) {
  std::erase_if(arriving_, [](const Receive* receive) { return receive->complete(); });
  const auto found = std::ranges::find_if(
      posted_, [&](const Receive* receive) { return receive->from == from && receive->tag == tag; });
  if (found == posted_.end()) {
    auto early = std::make_unique<Early>();
    early->from = from;
    early->tag = tag;
    early->buffer = HostBuffer(length);
    early->memory = {early->buffer.data(), length};
    early_.push_back(std::move(early));
    return early_.back().get();
  }
  Receive& receive = **found;
  posted_.erase(found);
  if (receive.memory.size() != length) {
    receive.wrong_length = length;
    return nullptr;
  }
  arriving_.push_back(&receive);
  return &receive;
}

}  // namespace sirtaki
