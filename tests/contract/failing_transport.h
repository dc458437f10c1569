// A transport that does what another one does, except that one exchange of one rank throws.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/transport.h"

namespace sirtaki::contract {

// Counts the exchanges of one rank: messages and data that it sends or receives, and groups that it makes.
struct Exchanges {
  int fails_at = 0;  // the number of the exchange that throws, counted from 1; 0: none
  std::atomic<int> count{0};

  bool failed() const { return fails_at > 0 && count >= fails_at; }
};

class FailingTransport final : public Transport {
 public:
  // Parts that are split off count their exchanges, too.
  FailingTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Exchanges> exchanges)
      : inner_(std::move(inner)), exchanges_(std::move(exchanges)) {
    set_patience(inner_->patience());
  }

  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void send(int to, Bytes bytes) override {
    exchange();
    inner_->send(to, std::move(bytes));
  }
  // Counts only messages that have arrived. The message that fails is lost.
  bool receive(Message& message) override {
    if (!inner_->receive(message)) return false;
    exchange();
    return true;
  }
  bool flushed() override { return inner_->flushed(); }
  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override {
    exchange();
    return inner_->send_data(to, tag, bytes);
  }
  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override {
    exchange();
    return inner_->receive_data(from, tag, bytes);
  }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override {
    exchange();
    inner_->set_patience(patience());
    auto part = inner_->split(ranks);
    return part == nullptr ? nullptr : std::make_unique<FailingTransport>(std::move(part), exchanges_);
  }
  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override {
    exchange();
    inner_->set_patience(patience());
    return std::make_unique<FailingTransport>(inner_->split_members(ranks), exchanges_);
  }
  void stop_data() override { inner_->stop_data(); }
  void abort_job(int exit_code) override { inner_->abort_job(exit_code); }

 private:
  void exchange() {
    if (++exchanges_->count != exchanges_->fails_at) return;
    throw Error(ErrorKind::kAborted, "exchange " + std::to_string(exchanges_->fails_at) + " has failed");
  }

  std::unique_ptr<Transport> inner_;
  std::shared_ptr<Exchanges> exchanges_;
};

}  // namespace sirtaki::contract
