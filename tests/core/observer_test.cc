// What the stations announce, in which order, on each rank: for batches that were voted for and for planned ones.
#include "observer/observer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>

#include "engine_jobs.h"
#include "expect.h"
#include "observer/statistics.h"

namespace sirtaki::testing {
namespace {

using Lines = std::vector<std::string>;

// Writes a line for each announcement. Some announcements come from the program's thread and some from the engine's.
class Log final : public Observer {
 public:
  bool has_seen_a_wait() const { return waits_; }
  Lines take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

  void on_submitted(int group, const Request& request) override { add("submitted", request.title(), group); }
  void on_wait_begun() override {
    add("wait begun");
    waits_ = true;
  }
  void on_wait_ended() override { add("wait ended"); }
  void on_step_ended() override { add("step ended"); }
  void on_voted(int group, const Request& request, bool by_slot) override {
    add(by_slot ? "voted by slot" : "voted", request.title(), group);
  }
  void on_agreed(const AgreedEvent& agreed) override {
    add("agreed", agreed.request.title() + last_rank(agreed.arrival), agreed.group);
  }
  void on_fused(const BatchEvent& batch) override { add("fused", batch); }
  void on_started(const BatchEvent& batch) override { add("started", batch); }
  void on_all_arrived(const BatchEvent& batch) override {
    // Of a plan, any rank may be last.
    add("all arrived" + (batch.planned && batch.arrival.last >= 0 ? "" : last_rank(batch.arrival)), batch);
  }
  void on_wire_begun(const BatchEvent& batch) override { add("wire begun", batch); }
  void on_wire_ended(const BatchEvent& batch) override { add("wire ended", batch); }
  void on_transferred(const BatchEvent& batch, std::string_view plane) override {
    add("transferred by " + std::string(plane), batch);
  }
  void on_finished(const BatchEvent& batch, BatchOutcome outcome) override {
    const std::string names[] = {"finished", "refused", "called off"};
    add(names[static_cast<std::size_t>(outcome)], batch);
  }
  void on_completed(int group, const Request& request, const Error* error) override {
    add(error == nullptr ? "completed" : "failed", request.title(), group);
  }
  void on_plan_locked(int) override { add("plan locked"); }
  void on_plan_left(int) override { add("plan left"); }

 private:
  static std::string last_rank(const Arrival& arrival) {
    const bool known = arrival.last >= 0 && arrival.spread >= Clock::duration::zero() && arrival.at <= Clock::now();
    return known ? ", last rank " + std::to_string(arrival.last) : "";
  }

  void add(const std::string& event, const std::string& title = "", int group = 0) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(event + (title.empty() ? "" : " " + title) + (group == 0 ? "" : " in " + std::to_string(group)));
  }
  void add(const std::string& event, const BatchEvent& batch) {
    add(event, (batch.planned ? "planned " : "") + std::to_string(batch.number) + ": " +
                   std::string(name_of(batch.verb)) + " of " + std::to_string(batch.tensors) + " tensors, " +
                   std::to_string(batch.bytes) + " bytes");
  }

  std::atomic<bool> waits_{false};
  std::mutex mutex_;
  Lines lines_;
};

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Waits interleave with the engine's announcements as the threads run, so they are looked at by themselves. So are
// waits for data, which need not occur.
Lines without_waits(Lines lines) {
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("wait ") || line.starts_with("wire "); });
  return lines;
}

void check_wire(const Lines& lines) {
  std::size_t begun = 0;
  for (const std::string& line : lines) {
    if (line.starts_with("wire begun")) ++begun;
    if (line.starts_with("wire ended")) CHECK_MESSAGE(begun-- == std::size_t{1}, "each wait for data ends once");
  }
  CHECK_MESSAGE(begun == std::size_t{0}, "and does end");
}

void check_voted(const Lines& lines, int rank) {
  check_wire(lines);
  CHECK_MESSAGE(joined(without_waits(lines)) ==
                    joined({"submitted x", "voted x", rank == 0 ? "agreed x, last rank 1" : "agreed x",
                            "all arrived, last rank 1 1: allreduce of 1 tensors, 16 bytes",
                            "fused 1: allreduce of 1 tensors, 16 bytes", "started 1: allreduce of 1 tensors, 16 bytes",
                            "transferred by point-to-point 1: allreduce of 1 tensors, 16 bytes",
                            "finished 1: allreduce of 1 tensors, 16 bytes", "completed x"}),
                "a batch that was voted for, on rank ", rank);
}

void check_planned(const Lines& lines, int rank) {
  const std::string batch = "planned 1: allreduce of 1 tensors, 16 bytes";
  CHECK_MESSAGE(joined(without_waits(lines)) ==
                    joined({"submitted x", "fused " + batch, "started " + batch, "all arrived " + batch,
                            "transferred by point-to-point " + batch, "finished " + batch, "completed x"}),
                "a batch of a locked plan, on rank ", rank);
}

// The numbers of planned batches, as a rank announced them.
Lines finished_batches(const Lines& lines) {
  Lines finished;
  std::ranges::copy_if(lines, std::back_inserter(finished),
                       [](const std::string& line) { return line.starts_with("finished planned"); });
  return finished;
}

void check_departure(const Lines& lines, int rank) {
  const std::string where = " on rank " + std::to_string(rank);
  CHECK_MESSAGE(std::ranges::count(lines, "plan left") == 1, "plans left", where);
  CHECK_MESSAGE(std::ranges::count(lines, "voted x") == 1, "votes", where);
  CHECK_MESSAGE(std::ranges::count(lines, "completed x") == 1, "completions", where);
  CHECK_MESSAGE(finished_batches(lines).empty(), "no planned batch runs", where);
}

void step(Engine& engine, std::vector<float>& data) { wait(allreduce(engine, data, "x")); }

TEST_CASE("Every rank announces its batches") {
  constexpr int kRanks = 2;
  Log logs[kRanks];
  Lines numbered[kRanks];
  std::atomic<bool> first_has_voted{false};
  run_ranks(kRanks, [&](Engine& engine, int rank) {
    Log& log = logs[rank];
    engine.observe(log);
    std::vector<float> data(4, 1.0F);
    // Rank 1 votes when rank 0 has voted.
    if (rank == 1) {
      while (!first_has_voted) std::this_thread::yield();
    }
    auto work = allreduce(engine, data, "x");
    if (rank == 0) {
      while (engine.statistics().cache_misses == 0) std::this_thread::yield();
      first_has_voted = true;
    }
    wait(work);
    check_voted(log.take(), rank);
    while (engine.statistics().planned_batches == 0) {
      log.take();
      step(engine, data);
    }
    check_planned(log.take(), rank);
    for (int i = 0; i < 5; ++i) step(engine, data);
    numbered[rank] = finished_batches(log.take());
    std::vector<float> longer(5, 1.0F);
    wait(allreduce(engine, longer, "x"));
    check_departure(log.take(), rank);
  });
  CHECK_MESSAGE(numbered[0].size() == std::size_t{5}, "planned batches");
  CHECK_MESSAGE(joined(numbered[0]) == joined(numbered[1]), "both ranks give a batch the same number");
  check_contains(numbered[0].back(), "planned 6:");
}

TEST_CASE("Waits and steps are announced by the program") {
  Log log;
  run_ranks(2, [&](Engine& engine, int rank) {
    if (rank == 1) engine.observe(log);
    std::vector<float> data(4, 1.0F);
    while (rank == 0 && !log.has_seen_a_wait()) std::this_thread::yield();
    auto work = allreduce(engine, data, "x");
    while (!engine.wait(*work)) {
    }
    engine.end_step();
    if (rank == 0) return;
    Lines lines = log.take();
    CHECK_MESSAGE(lines.back() == "step ended", "the last announcement");
    lines.pop_back();
    CHECK_MESSAGE(lines.back() == "wait ended", "the one before");
  });
}

TEST_CASE("Observers are limited in number") {
  Observers observers;
  Log log;
  for (std::size_t i = 0; i < Observers::kMost; ++i) observers.add(log);
  const auto error = expect_throw<Error>([&] { observers.add(log); }, "too many observers");
  check_contains(error.what(), "at most 6 observers");
  observers.announce(&Observer::on_step_ended);
  CHECK_MESSAGE(log.take().size() == Observers::kMost, "calls");
}

TEST_CASE("Statistics count what ran") {
  Statistics statistics;
  Observers observers;
  observers.add(statistics);
  const BatchEvent voted{.number = 1, .tensors = 3, .bytes = 48};
  const BatchEvent planned{.planned = true, .number = 1, .tensors = 2, .bytes = 16};
  observers.announce(&Observer::on_finished, voted, BatchOutcome::kDone);
  observers.announce(&Observer::on_finished, planned, BatchOutcome::kCalledOff);
  observers.announce(&Observer::on_finished, planned, BatchOutcome::kDone);
  CHECK_MESSAGE(statistics.batches.load() == std::uint64_t{2}, "batches");
  CHECK_MESSAGE(statistics.planned_batches.load() == std::uint64_t{1}, "planned batches");
  CHECK_MESSAGE(statistics.tensors.load() == std::uint64_t{5}, "tensors");
  CHECK_MESSAGE(statistics.bytes.load() == std::uint64_t{64}, "bytes");
  for (const char* plane : {"shm", "mpi", "shm"}) {
    observers.announce(&Observer::on_transferred, voted, std::string_view(plane));
  }
  CHECK((statistics.plane_uses() == std::map<std::string, std::uint64_t>{{"mpi", 1}, {"shm", 2}}));
  observers.announce(&Observer::on_wait_begun);
  observers.announce(&Observer::on_wait_ended);
  CHECK_MESSAGE(statistics.wait_cpu_ns.load() == std::uint64_t{0}, "waits are not timed unless that is asked for");
  statistics.time_waits();
  observers.announce(&Observer::on_wait_begun);
  volatile unsigned spent = 0;
  for (int i = 0; i < 100'000; ++i) spent = spent + 1;
  observers.announce(&Observer::on_wait_ended);
  CHECK_MESSAGE(statistics.wait_cpu_ns.load() > 0, "a wait that was timed");
}

}  // namespace
}  // namespace sirtaki::testing
