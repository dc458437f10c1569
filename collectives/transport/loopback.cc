#include "transport/loopback.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"

namespace sirtaki {
namespace {

// What all groups of a job share.
struct Job {
  std::mutex mutex;
  std::condition_variable changed;
  std::string aborted;
};

// The messages of all ranks of one group. Data is copied, so that a send completes at once.
struct Hub {
  Hub(std::shared_ptr<Job> job_, int size)
      : job(std::move(job_)), control(static_cast<std::size_t>(size)), split_calls(static_cast<std::size_t>(size)) {}

  std::shared_ptr<Job> job;
  std::vector<std::deque<Message>> control;                     // by receiver
  std::map<std::tuple<int, int, int>, std::deque<Bytes>> data;  // by sender, receiver, tag
  // Key: number of the split() call, and its lowest rank.
  std::map<std::pair<int, int>, std::shared_ptr<Hub>> split_hubs;
  std::vector<int> split_calls;
  std::map<int, int> arrived;
  // Groups that their members make alone: by ranks, in the order of the calls. Each entry: how many have arrived.
  std::map<std::vector<int>, std::deque<std::pair<std::shared_ptr<Hub>, std::size_t>>> by_members;
  std::map<std::pair<std::vector<int>, int>, std::size_t> member_calls;  // by ranks and calling rank
};

void throw_if_aborted(const Hub& hub) {
  if (!hub.job->aborted.empty()) throw Error(ErrorKind::kAborted, hub.job->aborted);
}

class Arrival final : public Pending {
 public:
  Arrival(std::shared_ptr<Hub> hub, std::tuple<int, int, int> key, std::span<std::byte> target)
      : hub_(std::move(hub)), key_(key), target_(target) {}

  bool ready() override {
    const std::lock_guard lock(hub_->job->mutex);
    throw_if_aborted(*hub_);
    auto& queue = hub_->data[key_];
    if (queue.empty()) return false;
    if (queue.front().size() != target_.size()) {
      throw Error(ErrorKind::kAborted, "data from rank " + std::to_string(std::get<0>(key_)) + " to rank " +
                                           std::to_string(std::get<1>(key_)) +
                                           " came cut off: " + std::to_string(queue.front().size()) + " bytes where " +
                                           std::to_string(target_.size()) + " were due");
    }
    std::memcpy(target_.data(), queue.front().data(), target_.size());
    queue.pop_front();
    return true;
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::tuple<int, int, int> key_;
  std::span<std::byte> target_;
};

class Loopback final : public Transport {
 public:
  Loopback(std::shared_ptr<Hub> hub, int rank, int size) : hub_(std::move(hub)), rank_(rank), size_(size) {}

  std::string_view name() const override { return "loopback"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int to, Bytes bytes) override {
    const std::lock_guard lock(hub_->job->mutex);
    throw_if_aborted(*hub_);
    hub_->control[static_cast<std::size_t>(to)].push_back({rank_, std::move(bytes)});
  }

  bool receive(Message& message) override {
    const std::lock_guard lock(hub_->job->mutex);
    throw_if_aborted(*hub_);
    auto& queue = hub_->control[static_cast<std::size_t>(rank_)];
    if (queue.empty()) return false;
    message = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  bool flushed() override { return true; }

  PendingPtr send_data(int to, int tag, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return nullptr;
    const std::lock_guard lock(hub_->job->mutex);
    throw_if_aborted(*hub_);
    hub_->data[{rank_, to, tag}].emplace_back(bytes.begin(), bytes.end());
    return nullptr;
  }

  PendingPtr receive_data(int from, int tag, std::span<std::byte> bytes) override {
    if (bytes.empty()) return nullptr;
    return std::make_unique<Arrival>(hub_, std::tuple{from, rank_, tag}, bytes);
  }

  std::unique_ptr<Transport> split(const std::vector<int>& ranks) override {
    std::unique_lock lock(hub_->job->mutex);
    const int call = hub_->split_calls[static_cast<std::size_t>(rank_)]++;
    std::shared_ptr<Hub> mine;
    if (!ranks.empty()) {
      auto& hub = hub_->split_hubs[{call, *std::ranges::min_element(ranks)}];
      if (hub == nullptr) hub = std::make_shared<Hub>(hub_->job, static_cast<int>(ranks.size()));
      mine = hub;
    }
    ++hub_->arrived[call];
    wait_until(lock, [&] { return hub_->arrived[call] == size_; });
    return part_of(mine, ranks);
  }

  std::unique_ptr<Transport> split_members(const std::vector<int>& ranks) override {
    std::unique_lock lock(hub_->job->mutex);
    const std::size_t call = hub_->member_calls[{ranks, rank_}]++;
    auto& made = hub_->by_members[ranks];
    if (made.size() == call) made.emplace_back(std::make_shared<Hub>(hub_->job, static_cast<int>(ranks.size())), 0);
    auto& [hub, arrived] = made[call];
    ++arrived;
    wait_until(lock, [&] { return arrived == ranks.size(); });
    return part_of(hub, ranks);
  }

  void abort_job(int exit_code) override {
    const std::lock_guard lock(hub_->job->mutex);
    if (hub_->job->aborted.empty()) {
      hub_->job->aborted =
          "rank " + std::to_string(rank_) + " ended the job with exit code " + std::to_string(exit_code);
    }
    hub_->job->changed.notify_all();
  }

 private:
  // For a change that other ranks make. Announces this rank's own change.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Condition condition) {
    hub_->job->changed.notify_all();
    const bool all =
        hub_->job->changed.wait_for(lock, patience(), [&] { return condition() || !hub_->job->aborted.empty(); });
    throw_if_aborted(*hub_);
    if (!all) {
      throw Error(ErrorKind::kAborted, "rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                                           " has waited too long for others to make a group together");
    }
  }

  std::unique_ptr<Transport> part_of(const std::shared_ptr<Hub>& hub, const std::vector<int>& ranks) {
    const auto found = std::ranges::find(ranks, rank_);
    if (found == ranks.end()) return nullptr;
    auto part =
        std::make_unique<Loopback>(hub, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()));
    part->set_patience(patience());
    return part;
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  int size_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_loopback(int size) {
  const auto hub = std::make_shared<Hub>(std::make_shared<Job>(), size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_unique<Loopback>(hub, rank, size));
  return transports;
}

}  // namespace sirtaki
