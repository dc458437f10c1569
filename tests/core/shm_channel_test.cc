// Whom a rank wakes when it has handed over in shared memory.
#include "plane/shm/shm_channel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/loopback.h"

namespace {

using sirtaki::Bytes;
using sirtaki::Message;
using sirtaki::PendingPtr;
using sirtaki::ShmChannel;
using sirtaki::ShmSegment;
using sirtaki::Transport;

constexpr int kRanks = 3;

// Counts whom its rank wakes, and wakes nobody.
class CountsWakes final : public Transport {
 public:
  explicit CountsWakes(std::unique_ptr<Transport> base) : base_(std::move(base)) {}
  std::string_view name() const override { return base_->name(); }
  int rank() const override { return base_->rank(); }
  int size() const override { return base_->size(); }
  void send(int to, Bytes bytes) override { base_->send(to, std::move(bytes)); }
  bool receive(Message& message) override { return base_->receive(message); }
  bool flushed() override { return base_->flushed(); }
  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override {
    return base_->send_data(to, tag, bytes);
  }
  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override {
    return base_->receive_data(from, tag, bytes);
  }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override { return base_->split(ranks); }
  bool wakes() const override { return true; }
  void wake(int peer) override { woken_.push_back(peer); }
  void abort_job(int) override {}

  std::vector<int> take_woken() { return std::exchange(woken_, {}); }

 private:
  std::unique_ptr<Transport> base_;
  std::vector<int> woken_;
};

struct Rank {
  std::unique_ptr<CountsWakes> transport;
  std::unique_ptr<ShmChannel> channel;
};

std::vector<Rank> make_ranks() {
  std::vector<Rank> ranks(kRanks);
  auto transports = sirtaki::make_loopback(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    auto& rank = ranks[static_cast<std::size_t>(r)];
    rank.transport = std::make_unique<CountsWakes>(std::move(transports[static_cast<std::size_t>(r)]));
    threads.emplace_back([&rank] {
      std::string why;
      auto segment = ShmSegment::make(*rank.transport, {ShmChannel::segment_size(kRanks, 4096)}, why);
      REQUIRE_MESSAGE(segment != nullptr, why);
      rank.channel = std::make_unique<ShmChannel>(std::move(segment), *rank.transport);
      rank.transport->take_woken();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// Ranks hand over one after the other, the last one last.
void hands_over(std::vector<Rank>& ranks, void (ShmChannel::*publish)(std::uint64_t), bool last_alone) {
  std::vector<std::uint64_t> turns;
  for (Rank& rank : ranks) turns.push_back(rank.channel->take_turns(1));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    (ranks[r].channel.get()->*publish)(turns[r]);
    std::vector<int> others;
    for (int other = 0; other < kRanks; ++other) {
      if (other != static_cast<int>(r)) others.push_back(other);
    }
    const std::vector<int> woken = ranks[r].transport->take_woken();
    if (last_alone && r + 1 < ranks.size()) {
      CHECK_MESSAGE(woken.empty(), "rank ", r, " woke somebody who has to wait for others too");
    } else {
      CHECK_MESSAGE(woken == others, "rank ", r, " did not wake all others");
    }
  }
}

TEST_CASE("Of ranks that write for all others, the last wakes the others") {
  std::vector<Rank> ranks = make_ranks();
  hands_over(ranks, &ShmChannel::publish_written_last_wakes, true);
  hands_over(ranks, &ShmChannel::publish_reduced, true);
}

TEST_CASE("A rank that others wait for alone wakes them at once") {
  std::vector<Rank> ranks = make_ranks();
  hands_over(ranks, &ShmChannel::publish_written, false);
  hands_over(ranks, &ShmChannel::publish_done, false);
}

}  // namespace
