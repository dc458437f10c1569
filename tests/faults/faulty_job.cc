#include "faulty_job.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine_jobs.h"
#include "faulty_transport.h"

namespace sirtaki::faults {
namespace {

constexpr int kSteps = 10;

struct WrongSum : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ProgramEnds : std::runtime_error {
  using std::runtime_error::runtime_error;
};

EngineOptions options_of(const Job& job) {
  std::mt19937 random(job.seed);
  EngineOptions options = testing::default_options();
  options.settings.shared_memory = false;
  options.settings.lock_plan = random() % 2 == 0;
  options.settings.cache_capacity = random() % 3 == 0 ? 3 : 4096;
  options.settings.fusion_threshold = random() % 3 == 0 ? 0 : 1 << 20;
  options.settings.stall_warning_seconds = 1;
  options.settings.stall_abort_seconds = 5;  // enough for machines that are busy
  options.settings.start_timeout_seconds = 8;
  return options;
}

// One tensor of one step, and what all ranks' add up to: whole numbers, so that every sum is exact.
class Sum {
 public:
  Sum(std::string name, std::size_t count, int step, int rank, int ranks) : name_(std::move(name)), data_(count) {
    const int base = step * 16;
    for (std::size_t i = 0; i < count; ++i) data_[i] = static_cast<float>(base + rank + static_cast<int>(i % 97));
    expected_ = base * ranks + ranks * (ranks - 1) / 2;
    ranks_ = ranks;
  }

  void begin(Engine& engine, int group = 0) {
    Request request;
    request.name = name_;
    request.tensors = {{DType::kFloat32, kHostDevice, {static_cast<std::int64_t>(data_.size())}}};
    work_ = engine.queue().put(group, {std::move(request), {{data_.data(), data_.data()}}});
    engine_ = &engine;
  }

  void end() {
    while (!engine_->wait(*work_)) {
    }
    work_->result();
    for (std::size_t i = 0; i < data_.size(); ++i) {
      const auto right = static_cast<float>(expected_ + ranks_ * static_cast<int>(i % 97));
      if (data_[i] == right) continue;
      throw WrongSum("'" + name_ + "' element " + std::to_string(i) + ": " + std::to_string(data_[i]) +
                     " where the sum is " + std::to_string(right));
    }
  }

 private:
  std::string name_;
  std::vector<float> data_;
  int expected_;
  int ranks_;
  std::shared_ptr<Work> work_;
  Engine* engine_ = nullptr;
};

// What one rank does: steps that repeat, other tensors among them, a process set.
class Program {
 public:
  Program(const Job& job, int rank, Engine& engine, Progress& progress)
      : job_(job), rank_(rank), engine_(engine), progress_(progress), random_(job.seed + 1) {}

  void run() {
    const std::size_t tensors = 1 + random_() % 5;
    std::vector<std::size_t> counts;
    for (std::size_t i = 0; i < tensors; ++i) counts.push_back(1 + random_() % (random_() % 3 == 0 ? 30'000 : 300));
    for (int step = 0; step < kSteps; ++step) {
      run_step(step, counts);
      if (step == 3) make_set();
      if (step > 3 && set_ > 0 && rank_ < job_.ranks - 1) add_up({"in set", 10, step, rank_, job_.ranks - 1}, set_);
    }
  }

 private:
  void run_step(int step, const std::vector<std::size_t>& counts) {
    const std::size_t first = sums_.size();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      begin({"t" + std::to_string(i), counts[i], step, rank_, job_.ranks}, 0);
    }
    for (std::size_t i = first; i < sums_.size(); ++i) sums_[i].end();
    if (random_() % 3 == 0) add_up({"metric" + std::to_string(step), 3, step, rank_, job_.ranks}, 0);
  }

  void begin(Sum sum, int group) {
    operate();
    sums_.push_back(std::move(sum));
    sums_.back().begin(engine_, group);
  }

  void add_up(Sum sum, int group) {
    begin(std::move(sum), group);
    sums_.back().end();
  }

  void make_set() {
    if (job_.ranks < 3) return;
    Request request;
    request.verb = Verb::kAddProcessSet;
    for (int r = 0; r < job_.ranks - 1; ++r) request.splits.push_back(r);
    operate();
    const auto work = engine_.queue().put(0, {std::move(request), {}});
    while (!engine_.wait(*work)) {
    }
    set_ = static_cast<int>(work->result().value);
  }

  void operate() {
    if (job_.fault.kind != Kind::kThrows || job_.fault.rank != rank_ || operations_++ != job_.fault.number) return;
    progress_.struck = true;
    throw ProgramEnds("the program ends here");
  }

  const Job& job_;
  int rank_;
  Engine& engine_;
  Progress& progress_;
  std::mt19937 random_;
  std::uint64_t operations_ = 0;
  int set_ = 0;
  std::deque<Sum> sums_;  // kept, since an engine may write to them until it has shut down
};

// Runs as long as the engine does.
std::thread answer_questions(Engine& engine, int rank) {
  return std::thread([&engine, rank] {
    while (engine.wait_for_question()) engine.answer("    the stack of rank " + std::to_string(rank));
  });
}

void run_rank(const Job& job, int rank, std::unique_ptr<Transport> transport, Progress& progress) {
  std::optional<Program> program;
  Engine engine(options_of(job), make_loopback_fabric(std::move(transport)));
  program.emplace(job, rank, engine, progress);
  if (job.fault.kind == Kind::kThrows && job.fault.rank == rank) {
    program->run();
    engine.shutdown();
    return;
  }
  std::thread stacks = answer_questions(engine, rank);
  std::exception_ptr error;
  try {
    program->run();
    if (rank == job.fault.rank) progress.leaving = true;
  } catch (...) {
    error = std::current_exception();
  }
  engine.shutdown();
  stacks.join();
  if (error != nullptr) std::rethrow_exception(error);
  const std::string failure = engine.failure();
  if (!failure.empty()) throw Error(ErrorKind::kAborted, failure);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Does the error say what happened, and at which rank?
bool names_cause(const std::string& error, const Fault& fault) {
  const std::string rank = "rank " + std::to_string(fault.rank);
  // No message tells of a rank that sends none; who waits for it does.
  const bool tells_absence =
      contains(error, rank) &&
      (contains(error, "Stalled") || contains(error, "has not answered") || contains(error, "arrived within") ||
       contains(error, "got no answer") || contains(error, "has waited"));
  switch (fault.kind) {
    case Kind::kNone:
      return false;
    case Kind::kThrows:
      return contains(error, rank + " left without shutdown()");
    case Kind::kSilent:
      return tells_absence;
    case Kind::kLate:
      return false;
    default:
      break;
  }
  if (fault.traffic == Traffic::kControl) {
    return contains(error, "control messages from " + rank + " to ") || tells_absence;
  }
  return contains(error, "data from " + rank) || (fault.kind == Kind::kLost && tells_absence);
}

// While the ranks start, one that ends can tell nobody any more: the others say that they have waited for it.
bool waited_at_start(const std::string& error) {
  return contains(error, "waited too long for others to make a group") || contains(error, "while the ranks prepared");
}

}  // namespace

Job::Job(std::uint32_t first_seed, int number) {
  std::seed_seq sequence{first_seed, static_cast<std::uint32_t>(number)};
  std::mt19937 random(sequence);
  seed = static_cast<std::uint32_t>(random());
  ranks = 2 + static_cast<int>(random() % 3);
  fault = Fault::random(random, ranks);
}

Outcome run(const Job& job) {
  Outcome outcome;
  outcome.errors.resize(static_cast<std::size_t>(job.ranks));
  auto transports = make_loopback(job.ranks);
  const auto progress = std::make_shared<Progress>();
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& error = outcome.errors[static_cast<std::size_t>(rank)];
      auto& own = transports[static_cast<std::size_t>(rank)];
      try {
        run_rank(job, rank, make_faulty(std::move(own), job.fault, rank, progress), *progress);
      } catch (const WrongSum& wrong) {
        const std::lock_guard lock(mutex);
        outcome.wrong = "rank " + std::to_string(rank) + ": " + wrong.what();
      } catch (const std::exception& failed) {
        error = failed.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  outcome.struck = progress->struck;
  outcome.struck_leaving = progress->struck_leaving;
  return outcome;
}

bool Outcome::failed() const {
  return std::ranges::any_of(errors, [](const std::string& error) { return !error.empty(); });
}

std::string Outcome::complaint(const Job& job) const {
  if (!wrong.empty()) return "a wrong sum: " + wrong;
  if (!failed()) return "";
  const bool is_named =
      std::ranges::any_of(errors, [&](const std::string& error) { return names_cause(error, job.fault); });
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    const bool gone = job.fault.kind == Kind::kThrows && static_cast<int>(rank) == job.fault.rank;
    const std::string who = "rank " + std::to_string(rank);
    if (errors[rank].empty()) {
      if (struck_leaving) continue;  // a rank that has left already cannot be notified
      return who + " ended well, while others failed";
    }
    if (gone || names_cause(errors[rank], job.fault) || (is_named && waited_at_start(errors[rank]))) continue;
    return who + " did not name the cause: " + errors[rank];
  }
  return "";
}

}  // namespace sirtaki::faults
