// Random programs on random schedules over the real groups: votes, locked plans and departures in one thread, which
// chooses at every turn which rank does what next. Every sum is checked, and nothing may come to a standstill.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <random>

#include "engine/group.h"
#include "fabric/loopback_fabric.h"
#include "observer/statistics.h"
#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

// Turns in which nothing moves on any rank, after which the job stands still.
constexpr int kStandstill = 3000;

struct Operation {
  std::string name;
  std::int64_t count = 1;
  int step = 0;
  int number = 0;
};

// What one rank's program does, in order.
struct Action {
  enum class Kind { kSubmit, kWaitForAll, kWaitForLast, kNewThreshold, kJoin, kLeave };
  Kind kind = Kind::kSubmit;
  Operation operation;
};
using Program = std::vector<Action>;

double contribution(const Operation& operation, int rank) {
  return 1 + rank * 10 + operation.step % 7 + operation.number * 0.5;
}

struct Traits {
  int ranks = 2;
  bool joins = false;        // ranks do unequal numbers of steps
  bool early_leave = false;  // one of them just leaves
  bool silent = false;       // without the drain rule
};

// Steps of one job, the same for all ranks up to the order within a step and what a rank does beside.
class Script {
 public:
  Script(std::mt19937& random, const Traits& traits) : random_(random), traits_(traits) {
    const int steps = 12 + pick(12);
    names_ = 1 + pick(7);
    programs_.resize(static_cast<std::size_t>(traits.ranks));
    for (int rank = 0; rank < traits.ranks; ++rank) {
      const bool shorter = (traits.joins || traits.early_leave) && rank == traits.ranks - 1;
      lengths_.push_back(shorter ? steps / 2 + pick(steps / 2) : steps);
    }
    std::vector<std::int64_t> counts(static_cast<std::size_t>(names_));
    for (auto& count : counts) count = 1 + pick(5);
    int first = 0;
    char phase = 'g';
    for (int step = 0; step < steps; ++step) {
      if (pick(8) == 0) counts[static_cast<std::size_t>(pick(names_))] = 1 + pick(5);  // another shape
      if (pick(10) == 0) first = pick(names_);                                         // frozen, or thawed
      if (pick(15) == 0) phase = phase == 'g' ? 'h' : 'g';                             // other names altogether
      write_step(step, phase, first, counts, pick(4) == 0);
    }
    for (int rank = 0; rank < traits.ranks; ++rank) {
      if (traits.joins) add(rank, {Action::Kind::kJoin, {}});
      add(rank, {Action::Kind::kLeave, {}});
    }
  }

  const Program& of(int rank) const { return programs_[static_cast<std::size_t>(rank)]; }
  bool takes_part(int rank, int step) const { return step < lengths_[static_cast<std::size_t>(rank)]; }
  int ranks() const { return traits_.ranks; }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<std::uint32_t>(below)); }
  void add(int rank, Action action) { programs_[static_cast<std::size_t>(rank)].push_back(std::move(action)); }

  void write_step(int step, char phase, int first, const std::vector<std::int64_t>& counts, bool with_metric) {
    const bool one_by_one = pick(6) == 0;
    for (int rank = 0; rank < traits_.ranks; ++rank) {
      if (!takes_part(rank, step)) continue;
      std::vector<int> order(static_cast<std::size_t>(names_ - first));
      std::iota(order.begin(), order.end(), first);
      if (!one_by_one) std::shuffle(order.begin(), order.end(), random_);
      for (const int number : order) {
        add(rank, {Action::Kind::kSubmit,
                   {phase + std::to_string(number), counts[static_cast<std::size_t>(number)], step, number}});
        if (one_by_one) add(rank, {Action::Kind::kWaitForLast, {}});
      }
      if (rank == 0 && pick(9) == 0) add(rank, {Action::Kind::kNewThreshold, {}});
      if (pick(5) != 0 || with_metric) add(rank, {Action::Kind::kWaitForAll, {}});
      if (with_metric) {
        add(rank, {Action::Kind::kSubmit, {"metric" + std::to_string(pick_metric(step)), 1, step, 100}});
        add(rank, {Action::Kind::kWaitForLast, {}});
      }
    }
  }
  static int pick_metric(int step) { return step % 3; }

  std::mt19937& random_;
  Traits traits_;
  int names_ = 0;
  std::vector<int> lengths_;
  std::vector<Program> programs_;
};

// Breaks the protocol of locked plans: a rank that departs does not enter the barrier at which the others learn of it.
class DropsDepartures final : public DataPlane {
 public:
  explicit DropsDepartures(std::unique_ptr<DataPlane> plane) : plane_(std::move(plane)) {}
  std::string_view name() const override { return "drops-departures"; }
  bool supports(const PlaneQuery& query) const override { return plane_->supports(query); }

  Task allreduce_behind_barrier(PlanBarrier& barrier, Reduction reduction, std::span<const Segment> segments) override {
    if (!barrier.called_off()) return plane_->allreduce_behind_barrier(barrier, reduction, segments);
    barrier.over = true;
    return {};
  }
  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    return plane_->allreduce(reduction, segments);
  }
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override {
    return plane_->broadcast(root, element_size, segments);
  }
  Task allgather(std::size_t element_size, const Spread& spread) override {
    return plane_->allgather(element_size, spread);
  }
  Task reducescatter(Reduction reduction, const Spread& spread) override {
    return plane_->reducescatter(reduction, spread);
  }
  Task alltoall(std::size_t element_size, const Exchange& exchange) override {
    return plane_->alltoall(element_size, exchange);
  }

 private:
  std::unique_ptr<DataPlane> plane_;
};

// One rank: its program, and its engine reduced to a queue and a group.
class Rank final : public GroupOwner {
 public:
  Rank(int rank, const Script& script, GroupOptions options, std::unique_ptr<Fabric> fabric, PlanChannel channel)
      : rank_(rank), script_(script) {
    observers_.add(statistics);
    DataPlanes planes = fabric->make_planes({});
    group_.emplace(std::move(options), std::move(fabric), std::move(planes), std::move(channel), *this, observers_);
  }
  ~Rank() { group_->fail_all(Error(ErrorKind::kAborted, "the simulation is over")); }

  // The program's next action, unless it waits. True if anything happened.
  bool run_program() {
    if (done_ || (waited_ && !waited_->done())) return false;
    waited_.reset();
    const Program& program = script_.of(rank_);
    if (next_ == program.size()) {
      done_ = true;
      return true;
    }
    const Action& action = program[next_];
    switch (action.kind) {
      case Action::Kind::kSubmit:
        if (under_way(action.operation.name)) return wait_for(*under_way(action.operation.name));
        submit(action.operation);
        break;
      case Action::Kind::kWaitForLast:
        return ++next_, wait_for(flying_.back());
      case Action::Kind::kWaitForAll:
        for (const Flight& flight : flying_) {
          if (!flight.work->done()) return wait_for(flight);
        }
        break;
      case Action::Kind::kNewThreshold:
        group_->set_fusion_threshold(static_cast<std::int64_t>(next_ % 3) * 40);
        break;
      case Action::Kind::kJoin:
        join();
        break;
      case Action::Kind::kLeave:
        leaving_ = true;
        break;
    }
    ++next_;
    return true;
  }

  bool run_engine() {
    const bool awaited = waited_ && !waited_->done();
    for (Submission& submission : std::exchange(queue_, {})) group_->plan().submit(std::move(submission));
    if (leaving_ && !group_->leaving()) group_->leave();
    return group_->progress(awaited);
  }

  bool finished() { return done_ && group_->all_left() && group_->planes_idle() && group_->flushed(); }
  int sums() const { return sums_; }
  int errors() const { return errors_; }

  Statistics statistics;

 private:
  struct Flight {
    Operation operation;
    std::shared_ptr<Work> work;
    std::shared_ptr<std::vector<double>> data;
  };

  void on_finished(int, Submission& submission, Result result, const Error* error) override {
    if (error != nullptr) return ++errors_, submission.work->fail(*error);
    for (const Flight& flight : flying_) {
      if (flight.work == submission.work) check_sum(flight);
    }
    submission.work->finish(std::move(result));
  }
  void on_all_joined(int) override {}
  void on_process_set(const Agreement&, std::optional<Submission>) override {}
  void on_asked(int) override {}
  void on_job_status(const std::string&) override {}
  std::vector<StandingWait> list_waits_for_peers(Clock::time_point) override { return {}; }
  void on_gone(int) override {}
  void log(const std::string&) override {}

  void check_sum(const Flight& flight) {
    double expected = 0;
    for (int rank = 0; rank < script_.ranks(); ++rank) {
      if (script_.takes_part(rank, flight.operation.step)) expected += contribution(flight.operation, rank);
    }
    for (const double value : *flight.data) CHECK_MESSAGE(value == expected, "sum of ", flight.operation.name);
    ++sums_;
  }

  const Flight* under_way(const std::string& name) const {
    const auto found = std::ranges::find_if(
        flying_, [&](const Flight& flight) { return flight.operation.name == name && !flight.work->done(); });
    return found == flying_.end() ? nullptr : &*found;
  }

  bool wait_for(const Flight& flight) {
    ++epoch_;
    if (flight.work->done()) return true;
    waited_ = flight.work;
    return true;
  }

  void submit(const Operation& operation) {
    const auto data = std::make_shared<std::vector<double>>(static_cast<std::size_t>(operation.count),
                                                            contribution(operation, rank_));
    Request request;
    request.name = operation.name;
    request.tensors = {{DType::kFloat64, kHostDevice, {operation.count}}};
    Submission submission(std::move(request), {{data->data(), data->data()}});
    std::erase_if(flying_, [](const Flight& flight) { return flight.work->done(); });
    flying_.push_back({operation, submission.work, data});
    submission.epoch = epoch_;
    queue_.push_back(std::move(submission));
  }

  void join() {
    Request request;
    request.verb = Verb::kJoin;
    request.name = "join";
    queue_.emplace_back(std::move(request), std::vector<Address>{});
    waited_ = queue_.back().work;
  }

  int rank_;
  const Script& script_;
  Observers observers_;
  std::optional<Group> group_;
  std::vector<Submission> queue_;
  std::deque<Flight> flying_;
  std::shared_ptr<Work> waited_;
  std::size_t next_ = 0;
  std::uint64_t epoch_ = 0;
  int sums_ = 0;
  int errors_ = 0;
  bool leaving_ = false;
  bool done_ = false;
};

struct Outcome {
  bool ended = false;
  int sums = 0;
  int errors = 0;
  std::uint64_t plans = 0;
  std::uint64_t planned_batches = 0;
  std::uint64_t departures = 0;
};

Outcome simulate(std::uint32_t seed, const Traits& traits) {
  std::mt19937 random(seed);
  const Script script(random, traits);
  auto transports = make_loopback(traits.ranks);
  auto channels = make_loopback(traits.ranks);
  std::deque<Rank> ranks;
  for (int rank = 0; rank < traits.ranks; ++rank) {
    GroupOptions options;
    for (int r = 0; r < traits.ranks; ++r) options.ranks.push_back(r);
    options.hosts.assign(options.ranks.size(), "host");
    PlanChannel channel{make_loopback_fabric(std::move(channels[static_cast<std::size_t>(rank)])), {}};
    channel.planes = channel.fabric->make_planes({});
    if (traits.silent) {
      for (auto& plane : channel.planes) plane = std::make_unique<DropsDepartures>(std::move(plane));
    }
    ranks.emplace_back(rank, script, std::move(options),
                       make_loopback_fabric(std::move(transports[static_cast<std::size_t>(rank)])), std::move(channel));
  }
  Outcome outcome;
  // Some ranks are slower than others, and now and then another one is.
  std::vector<double> speeds(ranks.size(), 1);
  for (int still = 0; still < kStandstill && !outcome.ended; ++still) {
    if (random() % 50 == 0) {
      for (double& speed : speeds) speed = random() % 3 == 0 ? 0.05 : 1;
    }
    std::discrete_distribution<std::size_t> next(speeds.begin(), speeds.end());
    Rank& rank = ranks[next(random)];
    if (random() % 3 == 0 ? rank.run_program() : rank.run_engine()) still = -1;
    outcome.ended = std::ranges::all_of(ranks, [](Rank& r) { return r.finished(); });
  }
  for (const Rank& rank : ranks) {
    outcome.sums += rank.sums();
    outcome.errors += rank.errors();
    outcome.plans += rank.statistics.plans;
    outcome.planned_batches += rank.statistics.planned_batches;
    outcome.departures += rank.statistics.departures;
  }
  return outcome;
}

// How many seeds; more by the environment for a long run by hand.
std::uint32_t seeds() {
  const char* const text = std::getenv("SIRTAKI_SIMULATIONS");
  return text == nullptr ? 300 : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

TEST_CASE("Every random program ends with right sums") {
  Outcome total;
  for (std::uint32_t seed = 0; seed < seeds(); ++seed) {
    const Outcome outcome = simulate(seed, {.ranks = 2 + static_cast<int>(seed % 3)});
    CHECK_MESSAGE(outcome.ended, "seed ", seed, " stands still");
    CHECK_MESSAGE(outcome.errors == 0, "errors of seed ", seed);
    total.plans += outcome.plans;
    total.planned_batches += outcome.planned_batches;
    total.departures += outcome.departures;
  }
  CHECK_MESSAGE(total.plans > seeds(), "plans were made: ", total.plans);
  CHECK_MESSAGE(total.planned_batches > 2 * total.plans, "they served: ", total.planned_batches);
  CHECK_MESSAGE(total.departures > total.plans / 2, "they were left: ", total.departures);
}

TEST_CASE("Ranks may join after unequal numbers of steps") {
  std::uint64_t departures = 0;
  for (std::uint32_t seed = 0; seed < seeds(); ++seed) {
    const Outcome outcome = simulate(seed, {.ranks = 2 + static_cast<int>(seed % 3), .joins = true});
    CHECK_MESSAGE(outcome.ended, "seed ", seed, " stands still");
    CHECK_MESSAGE(outcome.errors == 0, "errors of seed ", seed);
    departures += outcome.departures;
  }
  CHECK_MESSAGE(departures > seeds() / 4, "plans were left");
}

TEST_CASE("A rank that leaves early does not block the others") {
  for (std::uint32_t seed = 0; seed < seeds(); ++seed) {
    const Outcome outcome = simulate(seed, {.ranks = 2 + static_cast<int>(seed % 3), .early_leave = true});
    CHECK_MESSAGE(outcome.ended, "seed ", seed, " stands still");
  }
}

// A rank that leaves a plan still enters the barrier of the next batch. Without this rule the other ranks would wait
// there for ever, and this test must see that.
TEST_CASE("Without the drain rule the simulation finds standstills") {
  int standstills = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    if (!simulate(seed, {.ranks = 2, .silent = true}).ended) ++standstills;
  }
  CHECK_MESSAGE(standstills > 0, "a departure that the other ranks do not learn of brings them to a standstill");
}

}  // namespace
}  // namespace sirtaki::testing
