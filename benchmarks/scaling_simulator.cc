// What negotiation costs with many ranks: scaling_simulator [tensors] [bursts] [largest]
//
// Runs the real coordinator, planner, response cache and wire format for 8 to `largest` ranks that submit `tensors`
// gradients a step, in `bursts` as backward produces them; only the network is simulated. Messages and bytes are
// counted. Time is that of the coordinator's host, through which everything passes: for each message kOverhead and its
// bytes over kBandwidth, kLatency for each way, and the processor time that the real code took on this machine.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "coordinator.h"
#include "response_cache.h"

namespace sirtaki {
namespace {

// Of a fast network between hosts, as MPI programs see it: what a message costs the processor, how long it is under
// way, and bytes a second.
constexpr double kOverhead = 0.5e-6;
constexpr double kLatency = 2e-6;
constexpr double kBandwidth = 12.5e9;

struct Cost {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t batches = 0;
  double network = 0;    // seconds
  double processor = 0;  // seconds

  void send(std::size_t size, std::uint64_t copies) {
    messages += copies;
    bytes += size * copies;
    network += static_cast<double>(copies) * (kOverhead + static_cast<double>(size) / kBandwidth);
  }
};

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(now()) {}
  ~Stopwatch() { total_ += now() - start_; }

 private:
  // Of this thread alone, whatever else the machine does.
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double& total_;
  double start_;
};

Request gradient(int number) {
  Request request;
  request.name =
      "allreduce.DistributedOptimizer.layer" + std::to_string(number / 3) + ".weight" + std::to_string(number % 3);
  request.op = ReduceOp::kAverage;
  request.tensors = {{DType::kFloat32, kHostDevice, {512, 512, 1, 1}}};
  request.site = "train.py:41";
  return request;
}

// A job whose members all do the same, so that one member's state stands for all of theirs.
class Job {
 public:
  Job(int ranks, const std::vector<Request>& gradients)
      : ranks_(ranks), gradients_(gradients), coordinator_(numbered(ranks), Settings()) {}

  Cost step(int bursts) {
    Cost cost;
    const std::size_t count = gradients_.size();
    for (int burst = 0; burst < bursts; ++burst) {
      const auto part = [&](int b) { return count * static_cast<std::size_t>(b) / static_cast<std::size_t>(bursts); };
      negotiate({gradients_.data() + part(burst), part(burst + 1) - part(burst)}, cost);
    }
    return cost;
  }

 private:
  static std::vector<int> numbered(int ranks) {
    std::vector<int> result(static_cast<std::size_t>(ranks));
    std::iota(result.begin(), result.end(), 0);
    return result;
  }

  void negotiate(std::span<const Request> ready, Cost& cost) {
    Announcement announcement;
    announcement.seen = seen_;
    for (const Request& request : ready) {
      announcement.votes.push_back(cache_.vote_for(request));
      in_flight_[request.name] = request;
    }
    const Bytes bytes = encode(announcement);
    const auto others = static_cast<std::uint64_t>(ranks_ - 1);
    {
      const Stopwatch watch(cost.processor);
      for (int rank = 0; rank < ranks_; ++rank) coordinator_.hear(rank, decode_announcement(bytes), Clock::now());
    }
    cost.send(bytes.size(), others);
    Bytes answer;
    {
      const Stopwatch watch(cost.processor);
      answer = encode(coordinator_.decide(false, Settings().fusion_threshold));
    }
    cost.send(answer.size(), others);
    cost.network += 2 * kLatency;
    act_on(decode_verdict(answer), cost);
  }

  void act_on(Verdict verdict, Cost& cost) {
    seen_ = verdict.number;
    cost.batches += verdict.batches.size();
    for (ItemList& batch : verdict.batches) {
      for (Item& item : batch) {
        const auto agreement =
            item.agreement ? std::make_shared<const Agreement>(std::move(*item.agreement)) : cache_.at(item.slot);
        const Request& own = in_flight_.at(agreement->request.name);
        if (item.agreement) cache_.remember(item.slot, agreement, &own);
        in_flight_.erase(agreement->request.name);
      }
    }
    if (!in_flight_.empty() || !verdict.refusals.empty()) {
      std::fprintf(stderr, "not everything was agreed on\n");
      std::exit(1);
    }
  }

  int ranks_;
  const std::vector<Request>& gradients_;
  Coordinator coordinator_;
  ResponseCache cache_;
  std::map<std::string, Request> in_flight_;
  std::uint64_t seen_ = 0;
};

void print(const char* step, int ranks, const Cost& cost) {
  std::printf("%6d  %-6s %9llu %12.3f %8llu %10.3f %10.3f %10.3f\n", ranks, step,
              static_cast<unsigned long long>(cost.messages), static_cast<double>(cost.bytes) / 1e6,
              static_cast<unsigned long long>(cost.batches), cost.network * 1e3, cost.processor * 1e3,
              (cost.network + cost.processor) * 1e3);
}

int argument(int count, char** values, int index, int otherwise) {
  if (index >= count) return otherwise;
  const int value = std::atoi(values[index]);
  if (value < 1) {
    std::fprintf(stderr, "expected a positive number, got '%s'\n", values[index]);
    std::exit(2);
  }
  return value;
}

}  // namespace
}  // namespace sirtaki

int main(int count, char** values) {
  using namespace sirtaki;
  const int tensors = argument(count, values, 1, 161);
  const int bursts = std::min(argument(count, values, 2, 8), tensors);
  const int largest = argument(count, values, 3, 16384);
  std::vector<Request> gradients;
  for (int i = 0; i < tensors; ++i) gradients.push_back(gradient(i));
  std::printf("%d gradients a step, ready in %d bursts\n", tensors, bursts);
  std::printf("%6s  %-6s %9s %12s %8s %10s %10s %10s\n", "ranks", "step", "messages", "MB", "batches", "network ms",
              "code ms", "sum ms");
  for (int ranks = 8; ranks <= largest; ranks *= ranks < 1024 ? 2 : 4) {
    Job job(ranks, gradients);
    print("first", ranks, job.step(bursts));
    std::vector<Cost> steady;
    for (int i = 0; i < 5; ++i) steady.push_back(job.step(bursts));
    std::sort(steady.begin(), steady.end(), [](const Cost& a, const Cost& b) { return a.processor < b.processor; });
    print("steady", ranks, steady[steady.size() / 2]);
  }
}
