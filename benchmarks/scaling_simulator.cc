// What negotiation costs with many ranks: scaling_simulator [tensors] [bursts] [largest]
//
// Runs the real coordinator, planner, response cache and wire format for 8 to `largest` ranks that submit `tensors`
// gradients a step, in `bursts` as backward produces them; only the network is simulated. Messages and bytes are
// counted. Time is that of the busiest rank: for each message kOverhead and its bytes over kBandwidth, kLatency for
// each way, and the processor time that the real code took on this machine. By votes that is the coordinator, through
// which everything passes; in a locked plan all ranks do the same. Last, the locked step of two large machines becomes
// a prediction of images a second of ResNet-50, beside what others published of these machines.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agreement/response_cache.h"
#include "coordinator/coordinator.h"
#include "locked_plan/locked_plan.h"

namespace sirtaki {
namespace {

// Of a fast network between hosts, as MPI programs see it: what a message costs the processor, how long it is under
// way, and bytes a second.
constexpr double kOverhead = 0.5e-6;
constexpr double kLatency = 2e-6;
constexpr double kBandwidth = 12.5e9;

// The words of a meeting (docs/locked_plan.md).
constexpr std::size_t kMeetingBytes = 24;

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

  // A small allreduce by recursive doubling: in each round every rank sends to one and hears from one.
  void meet(int ranks) {
    const auto rounds = static_cast<std::uint64_t>(std::bit_width(static_cast<unsigned>(ranks - 1)));
    messages += rounds * static_cast<std::uint64_t>(ranks);
    bytes += kMeetingBytes * rounds * static_cast<std::uint64_t>(ranks);
    network +=
        static_cast<double>(rounds) * (2 * (kOverhead + static_cast<double>(kMeetingBytes) / kBandwidth) + kLatency);
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

  // From here on the coordinator may make a plan; steps by votes until every tensor belongs to it.
  void lock() {
    may_plan_ = true;
    constexpr int kEnough = 4;
    for (int i = 0; i < kEnough && !plan_; ++i) step(1);
    if (!plan_) fail("no plan was made");
    step(1);
  }

  Cost planned_step() {
    Cost cost;
    std::vector<Submission> submissions;
    for (const Request& request : gradients_) submissions.push_back({request, {}, nullptr, nullptr});
    const Stopwatch watch(cost.processor);
    for (Submission& submission : submissions) {
      if (plan_->offer(submission, Clock::now()) != LockedPlan::Answer::kHeld) fail("a tensor is not planned");
    }
    for (; plan_->complete(); ++cost.batches) {
      cost.meet(ranks_);
      const Batch batch = plan_->take(Clock::now());
    }
    if (plan_->holds_anything()) fail("the plan does not end with the step");
    return cost;
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }

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
      for (int rank = 0; rank < ranks_; ++rank) coordinator_.receive(rank, decode_announcement(bytes), Clock::now());
    }
    cost.send(bytes.size(), others);
    Bytes answer;
    {
      const Stopwatch watch(cost.processor);
      answer = encode(coordinator_.decide(false, Settings().fusion_threshold, may_plan_));
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
        if (plan_) plan_->negotiated(agreement->request.name, Clock::now());
        in_flight_.erase(agreement->request.name);
      }
    }
    if (!in_flight_.empty() || !verdict.refusals.empty()) fail("not everything was agreed on");
    if (!verdict.plan.empty()) lock(verdict.plan);
  }

  void lock(const std::vector<std::vector<CacheSlot>>& slots_of_batches) {
    LockedPlan::Batches batches;
    for (const std::vector<CacheSlot>& slots : slots_of_batches) {
      auto& batch = batches.emplace_back();
      for (const CacheSlot slot : slots) batch.push_back(cache_.at(slot));
    }
    plan_.emplace(batches, 0, ranks_, Clock::now());
    may_plan_ = false;
  }

  int ranks_;
  const std::vector<Request>& gradients_;
  Coordinator coordinator_;
  ResponseCache cache_;
  std::map<std::string, Request> in_flight_;
  std::uint64_t seen_ = 0;
  bool may_plan_ = false;
  std::optional<LockedPlan> plan_;
};

// The step that took the middle of the processor times.
template <class Step>
Cost median(Step step) {
  std::vector<Cost> costs;
  for (int i = 0; i < 5; ++i) costs.push_back(step());
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.processor < b.processor; });
  return costs[costs.size() / 2];
}

void print(const char* step, int ranks, const Cost& cost) {
  std::printf("%6d  %-6s %9llu %12.3f %8llu %10.3f %10.3f %10.3f\n", ranks, step,
              static_cast<unsigned long long>(cost.messages), static_cast<double>(cost.bytes) / 1e6,
              static_cast<unsigned long long>(cost.batches), cost.network * 1e3, cost.processor * 1e3,
              (cost.network + cost.processor) * 1e3);
}

// A machine of whose training with ResNet-50 a total was published.
struct Machine {
  const char* name;
  int hosts;
  int ranks_of_host;
  double network;    // bytes a second of a host
  double memory;     // bytes a second of a rank, to and from the others of its host
  double alone;      // images a second of one rank without exchange
  int batch;         // images of a rank in a step
  double published;  // images a second
};

// Sources of these figures: docs/scaling.md.
constexpr Machine kMachines[] = {
    {"2048 CPU hosts", 2048, 4, 12.5e9, 10e9, 32, 64, 260e3},
    {"256 hosts of 6 V100", 256, 6, 25e9, 50e9, 412, 128, 420e3},
};
constexpr double kGradientBytes = 25.56e6 * 4;
constexpr double kForward = 1.0 / 3;  // of a step without exchange; backward is the rest

// Seconds of the exchange of one batch by two levels: among the ranks of a host, and by recursive halving and doubling
// between hosts. Both go on at the same time, piece by piece.
double exchange(const Machine& machine, const Cost& plan) {
  const auto batches = static_cast<double>(plan.batches);
  const auto moved = [&](int parts) { return 2 * kGradientBytes / batches * (parts - 1) / parts; };
  const int rounds = 2 * std::bit_width(static_cast<unsigned>(machine.hosts - 1));
  const double between = moved(machine.hosts) / machine.network + rounds * (2 * kOverhead + kLatency);
  const double within = moved(machine.ranks_of_host) / machine.memory;
  return std::max(between, within) + plan.network / batches;
}

// Batches become ready evenly during backward, and are exchanged one after the other.
void predict(const Machine& machine, const std::vector<Request>& gradients) {
  const int ranks = machine.hosts * machine.ranks_of_host;
  Job job(ranks, gradients);
  job.lock();
  const Cost plan = median([&] { return job.planned_step(); });
  const double compute = machine.batch / machine.alone;
  const double one = exchange(machine, plan);
  double end = 0;
  for (std::uint64_t b = 1; b <= plan.batches; ++b) {
    const double ready = kForward + (1 - kForward) * static_cast<double>(b) / static_cast<double>(plan.batches);
    end = std::max(end, ready * compute) + one;
  }
  end += plan.processor;
  std::printf("%-20s %6d %8llu %12.1f %10.1f %8.3f %10.0f %10.0f\n", machine.name, ranks,
              static_cast<unsigned long long>(plan.batches), one * 1e3 * static_cast<double>(plan.batches), end * 1e3,
              compute / end, ranks * machine.batch / end, machine.published);
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
    print("voted", ranks, median([&] { return job.step(bursts); }));
    job.lock();
    print("locked", ranks, median([&] { return job.planned_step(); }));
  }
  std::printf("\nResNet-50 by this model\n%-20s %6s %8s %12s %10s %8s %10s %10s\n", "machine", "ranks", "batches",
              "exchange ms", "step ms", "kept", "images/s", "published");
  for (const Machine& machine : kMachines) predict(machine, gradients);
}
