// A fault at each exchange of a rank in turn, and an abort from another thread: every rank ends, with the right result
// or with an error, on 1 to 8 ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine_jobs.h"
#include "expect.h"
#include "failing_transport.h"
#include "plane/point_to_point.h"
#include "plane/shm/shm.h"
#include "socket_jobs.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

using testing::request_of;

constexpr std::array kSizes = {1, 2, 3, 4, 5, 8};

using MakeTransports = std::function<std::vector<std::unique_ptr<Transport>>(int size)>;

std::vector<std::unique_ptr<Transport>> connect_by_sockets(int size) { return testing::make_socket_transports(size); }

// Ends the test with a message if a job hangs.
class Watchdog {
 public:
  explicit Watchdog(std::string job) : job_(std::move(job)), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::seconds(60), [this] { return over_; })) return;
    std::fprintf(stderr, "this job hangs: %s\n", job_.c_str());
    std::_Exit(1);
  }

  std::string job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

std::string title(int size, int rank, int number) {
  return std::to_string(size) + " ranks, exchange " + std::to_string(number) + " of rank " + std::to_string(rank);
}

void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// Calls run(number) with 1, 2, ... until it returns false: the rank has made fewer exchanges.
void for_each_exchange(int size, int rank, const std::function<bool(int number)>& run) {
  constexpr int kTooMany = 1000;
  for (int number = 1; number < kTooMany; ++number) {
    const Watchdog watchdog(title(size, rank, number));
    if (!run(number)) return;
  }
  FAIL("the number of exchanges does not end");
}

// ---- planes ----

// Runs every verb once. Whole numbers, so that each result is exact. True if all results are right.
bool run_verbs(DataPlane& plane, int rank, int size) {
  const auto n = static_cast<std::size_t>(size);
  std::vector<float> data{static_cast<float>(rank), 1}, own{static_cast<float>(rank)}, all(n), part(1), got(n);
  std::vector<float> sent(n, static_cast<float>(rank));
  const std::vector<Segment> segments = {{data.data(), data.data(), 2}};
  wait(plane.allreduce({}, segments));
  bool right = data[0] == static_cast<float>(size * (size - 1) / 2) && data[1] == static_cast<float>(size);
  wait(plane.broadcast(size - 1, sizeof(float), std::vector<Segment>{{own.data(), own.data(), 1}}));
  right &= own[0] == static_cast<float>(size - 1);
  const std::vector<std::int64_t> ones(n, 1);
  wait(plane.allgather(sizeof(float), Spread{sent.data(), all.data(), ones}));
  wait(plane.reducescatter({}, Spread{all.data(), part.data(), ones}));
  wait(plane.alltoall(sizeof(float), Exchange{sent.data(), got.data(), ones, ones}));
  for (std::size_t r = 0; r < n; ++r) right &= all[r] == static_cast<float>(r) && got[r] == static_cast<float>(r);
  return right && part[0] == static_cast<float>(rank * size);
}

// One rank fails, and another thread then ends the job. False if the rank made fewer exchanges.
bool run_planes(const MakeTransports& make, int size, int rank, int number) {
  auto transports = make(size);
  std::vector<std::shared_ptr<Exchanges>> exchanges;
  for (auto& transport : transports) {
    exchanges.push_back(std::make_shared<Exchanges>());
    transport = std::make_unique<FailingTransport>(std::move(transport), exchanges.back());
  }
  const auto index = static_cast<std::size_t>(rank);
  exchanges[index]->fails_at = number;
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::atomic<bool> right{true};
  on_threads(size, [&](int r) {
    Transport& transport = *transports[static_cast<std::size_t>(r)];
    try {
      if (!run_verbs(*make_point_to_point_plane(transport), r, size)) right = false;
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(r)] = error.what();
      if (r == rank) std::thread([&] { transport.abort_job(3); }).join();
    }
    transports[static_cast<std::size_t>(r)].reset();
  });
  CHECK_MESSAGE(right, "a wrong result: ", title(size, rank, number));
  const bool failed = exchanges[index]->failed();
  CHECK_MESSAGE(errors[index].empty() != failed, title(size, rank, number), ": ", errors[index]);
  for (std::size_t r = 0; r < errors.size(); ++r) {
    if (r == index || errors[r].empty()) continue;
    const std::string end = "rank " + std::to_string(rank) + " ended the job with exit code 3";
    // A rank may end before the others have connected to it.
    const bool lost = errors[r].find("the connection between it and rank") != std::string::npos;
    CHECK_MESSAGE((failed && (errors[r] == end || lost)), title(size, rank, number), ", on rank ", r, ": ", errors[r]);
  }
  return failed;
}

void fail_at_each_exchange_of_planes(const MakeTransports& make, std::span<const int> sizes) {
  for (const int size : sizes) {
    for (const int rank : std::set{0, size - 1}) {
      for_each_exchange(size, rank, [&](int number) { return run_planes(make, size, rank, number); });
    }
  }
}

TEST_CASE("A plane ends with a result or an error on every rank, whichever exchange fails") {
  fail_at_each_exchange_of_planes(make_loopback, kSizes);
}

TEST_CASE("A plane over sockets ends with a result or an error on every rank, whichever exchange fails") {
  fail_at_each_exchange_of_planes(connect_by_sockets, kSizes);
}

// ---- engines ----

struct Job {
  int size;
  int rank;    // whose exchange fails
  int number;  // of that exchange
  MakePlanes planes;
  MakeTransports transports = make_loopback;
};

struct Outcome {
  std::string error;    // of the program, or of the engine's start
  std::string failure;  // the cause that the engine reports
};

void check(bool right, const Job& job) {
  if (!right) throw std::runtime_error("a wrong result: " + title(job.size, job.rank, job.number));
}

// A ring: each rank sends to the next one, a small tensor or a large one.
void pass_on(Engine& engine, int rank, const Job& job, std::size_t length) {
  std::vector<float> given(length, static_cast<float>(rank)), got(length);
  const int before = (rank + job.size - 1) % job.size;
  const auto received = testing::transfer(engine, Verb::kReceive, got, before, 3);
  const auto sent = testing::transfer(engine, Verb::kSend, given, (rank + 1) % job.size, 3);
  testing::wait(received);
  testing::wait(sent);
  check(got == std::vector<float>(length, static_cast<float>(before)), job);
}

// Voted for, then by a locked plan, then voted for again. The sums are whole numbers.
void run_program(Engine& engine, int rank, const Job& job) {
  for (int step = 0; step < 4; ++step) {
    std::vector<float> data{static_cast<float>(rank + step)};
    testing::wait(testing::allreduce(engine, data, "x"));
    check(data[0] == static_cast<float>(job.size * (job.size - 1) / 2 + job.size * step), job);
  }
  std::vector<float> own{static_cast<float>(rank), 1};
  Request request = request_of(Verb::kBroadcast, "b", {2});
  request.root = job.size - 1;
  testing::wait(engine.queue().put(0, {std::move(request), {{own.data(), own.data()}}}));
  check(own[0] == static_cast<float>(job.size - 1), job);
  pass_on(engine, rank, job, 1);
  pass_on(engine, rank, job, 10000);
}

// A rank whose engine cannot start cannot notify the others, so it ends the job by `ender`.
void run_rank(const Job& job, int rank, std::unique_ptr<Transport> transport, Transport& ender, Outcome& outcome) {
  EngineOptions options = testing::default_options();
  options.settings.shared_memory = false;
  options.settings.stall_warning_seconds = 10;
  options.settings.stall_abort_seconds = 20;
  try {
    Engine engine(std::move(options), make_loopback_fabric(std::move(transport), job.planes));
    try {
      run_program(engine, rank, job);
    } catch (const Error& error) {
      outcome.error = error.what();
    }
    engine.shutdown();
    outcome.failure = engine.failure();
  } catch (const Error& error) {
    outcome.error = error.what();
    ender.abort_job(3);
  }
}

// The coordinator may have left when a rank fails at the last barrier of a locked plan. Then no rank is left to notify
// those that wait at that barrier, whose programs have ended: they report the silent coordinator, or over sockets the
// rank that has left.
bool has_lost_coordinator(const Outcome& outcome) {
  const auto says = [&](const char* text) { return outcome.failure.find(text) != std::string::npos; };
  return outcome.error.empty() && (says("which coordinates, has not answered") || says("but it has left the job"));
}

// A rank without an error has all its results. All ranks report one cause: that of the rank whose exchange has failed.
void check_outcomes(const std::vector<Outcome>& outcomes, const Job& job, bool failed) {
  std::set<std::string> causes;
  for (const Outcome& outcome : outcomes) {
    CHECK_MESSAGE((failed || outcome.error + outcome.failure == ""), "an error without a fault: ", outcome.error,
                  outcome.failure);
    if (outcome.failure.empty() || (failed && has_lost_coordinator(outcome))) continue;
    causes.insert(outcome.failure);
    testing::check_contains(outcome.failure, "exchange " + std::to_string(job.number) + " has failed");
  }
  std::string all;
  for (const std::string& cause : causes) all += "\n  " + cause;
  CHECK_MESSAGE(causes.size() <= 1, title(job.size, job.rank, job.number), ":", all);
  const Outcome& own = outcomes[static_cast<std::size_t>(job.rank)];
  CHECK_MESSAGE((own.error + own.failure).empty() != failed, title(job.size, job.rank, job.number), " is noticed");
}

// False if the rank made fewer exchanges.
bool run_engines(const Job& job) {
  auto transports = job.transports(job.size);
  const auto exchanges = std::make_shared<Exchanges>();
  exchanges->fails_at = job.number;
  std::vector<Outcome> outcomes(transports.size());
  std::vector<std::unique_ptr<Transport>> enders(transports.size());
  on_threads(job.size, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    enders[index] = transports[index]->split({rank});
  });
  on_threads(job.size, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    auto own = rank == job.rank ? exchanges : std::make_shared<Exchanges>();
    auto transport = std::make_unique<FailingTransport>(std::move(transports[index]), std::move(own));
    run_rank(job, rank, std::move(transport), *enders[index], outcomes[index]);
    enders[index].reset();
  });
  check_outcomes(outcomes, job, exchanges->failed());
  return exchanges->failed();
}

DataPlanes make_shm_planes(Transport& transport, const std::vector<int>& hosts) {
  std::string why;
  DataPlanes planes = make_point_to_point_planes(transport, hosts);
  if (auto plane = make_shm_plane(transport, why)) planes.insert(planes.begin(), std::move(plane));
  return planes;
}

void fail_at_each_exchange(const MakePlanes& planes, std::span<const int> sizes,
                           const MakeTransports& transports = make_loopback) {
  std::vector<std::pair<int, int>> runs;
  for (const int size : sizes) {
    for (const int rank : std::set{0, size - 1}) runs.emplace_back(size, rank);
  }
  // All at once, since some jobs wait for an answer that cannot come.
  on_threads(static_cast<int>(runs.size()), [&](int i) {
    const auto [size, rank] = runs[static_cast<std::size_t>(i)];
    for_each_exchange(size, rank, [&](int number) { return run_engines({size, rank, number, planes, transports}); });
  });
}

TEST_CASE("Engines end with one cause, whichever exchange fails") {
  fail_at_each_exchange(make_point_to_point_planes, kSizes);
}

TEST_CASE("Engines over sockets end with one cause, whichever exchange fails") {
  fail_at_each_exchange(make_point_to_point_planes, std::array{2, 3}, connect_by_sockets);
}

TEST_CASE("Engines over shared memory end with one cause, whichever exchange fails") {
  fail_at_each_exchange(make_shm_planes, std::array{2, 3});
}

// ---- an abort from another thread ----

// Rank 0 takes no part, so the others wait until another thread ends the job.
void check_abort(int size, const std::function<void(Transport&)>& wait_for_rank_0) {
  const Watchdog watchdog("an abort on " + std::to_string(size) + " ranks");
  auto transports = make_loopback(size);
  std::atomic<int> waiting{0};
  on_threads(size, [&](int rank) {
    Transport& transport = *transports[static_cast<std::size_t>(rank)];
    if (rank == 0) {
      wait_until([&] { return waiting == size - 1; });
      std::thread([&] { transport.abort_job(3); }).join();
    }
    ++waiting;
    testing::check_error(ErrorKind::kAborted, "rank 0 ended the job with exit code 3",
                         [&] { wait_for_rank_0(transport); });
  });
}

TEST_CASE("An abort from another thread ends every wait of every rank") {
  for (const int size : kSizes) {
    check_abort(size, [](Transport& transport) {
      Message message;
      wait_until([&] { return transport.receive(message); });
    });
    check_abort(size, [](Transport& transport) {
      std::byte data{};
      wait(transport.receive_data((transport.rank() + 1) % transport.size(), 0, {&data, 1}));
    });
    check_abort(size, [](Transport& transport) { transport.split({0}); });
    if (size == 1) continue;
    check_abort(size, [](Transport& transport) {
      std::string why;
      make_shm_plane(transport, why);
    });
    check_abort(
        size, [&](Transport& transport) { run_verbs(*make_point_to_point_plane(transport), transport.rank(), size); });
  }
}

TEST_CASE("A job that another thread fails frees every rank that waits") {
  for (const int size : kSizes) {
    const Watchdog watchdog("a failure on " + std::to_string(size) + " ranks");
    std::atomic<int> waiting{0};
    testing::run_ranks(size, [&](Engine& engine, int rank) {
      std::vector<float> data{1};
      std::thread fails;
      if (rank == 0) {
        fails = std::thread([&] {
          wait_until([&] { return waiting == size - 1; });
          FailureCause cause;
          cause.kind = FailureKind::kException;
          cause.text = "another thread gives up";
          engine.fail_job(std::move(cause));
        });
      } else {
        ++waiting;
      }
      testing::check_error(ErrorKind::kAborted, "another thread gives up", [&] {
        if (rank > 0) testing::wait(testing::allreduce(engine, data, "x"));
        while (engine.failure().empty()) std::this_thread::yield();
        throw Error(ErrorKind::kAborted, engine.failure());
      });
      if (fails.joinable()) fails.join();
    });
  }
}

}  // namespace
}  // namespace sirtaki::contract
