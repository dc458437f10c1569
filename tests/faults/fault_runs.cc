// Jobs in which one thing goes wrong: fault_runs [runs] [seed] [jobs at once] [first run]. One line for each, its
// fields divided by tabs: number, ranks, fault, traffic, whether it happened, "right sums" or "error", seconds, what
// rank 0 or else the first rank said. A run that shows a fault of the engine, or does not end, makes the program fail.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "faulty_job.h"

namespace sirtaki::faults {
namespace {

constexpr std::chrono::seconds kLimit{60};  // of a run; the engine's own limits are some seconds

std::string in_one_line(std::string text) {
  for (char& each : text) {
    if (each == '\n' || each == '\t') each = ' ';
  }
  return text;
}

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

class Runs {
 public:
  Runs(std::uint32_t seed, int first, int end) : seed_(seed), next_(first), end_(end) {}

  // One of several threads.
  void work(std::atomic<Clock::rep>& began, std::atomic<int>& number) {
    for (int run = next_++; run < end_; run = next_++) {
      number = run;
      began = Clock::now().time_since_epoch().count();
      report(run, Job(seed_, run));
      began = 0;
    }
  }

  bool failed() const { return failed_; }

 private:
  void report(int number, const Job& job) {
    const auto begin = Clock::now();
    const Outcome outcome = run(job);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::string first;
    for (std::size_t i = 0; i < outcome.errors.size() && first.empty(); ++i) first = outcome.errors[i];
    const std::string complaint = outcome.complaint(job);
    if (!complaint.empty()) failed_ = true;
    const std::lock_guard lock(mutex_);
    std::printf("%d\t%d\t%s\t%s\t%s\t%s\t%.1f\t%s\n", number, job.ranks, name_of(job.fault.kind).c_str(),
                job.fault.traffic == Traffic::kControl ? "control" : "data", outcome.struck ? "struck" : "-",
                outcome.failed() ? "error" : "right sums", seconds, in_one_line(first).c_str());
    if (!complaint.empty()) {
      std::printf("FAULT\t%d\t%s: %s\n", number, job.fault.text().c_str(), in_one_line(complaint).c_str());
    }
    std::fflush(stdout);
  }

  std::uint32_t seed_;
  std::atomic<int> next_;
  int end_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
};

bool all_runs(int first, int end, std::uint32_t seed, int at_once) {
  Runs runs(seed, first, end);
  struct Worker {
    std::atomic<Clock::rep> began{0};
    std::atomic<int> number{0};
    std::thread thread;
  };
  std::vector<Worker> workers(static_cast<std::size_t>(at_once));
  for (Worker& worker : workers) {
    worker.thread = std::thread([&runs, &worker] { runs.work(worker.began, worker.number); });
  }
  std::atomic<bool> over{false};
  std::thread watchdog([&] {
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      for (const Worker& worker : workers) {
        const Clock::rep began = worker.began;
        if (began == 0 || Clock::now().time_since_epoch().count() - began < Clock::duration(kLimit).count()) continue;
        std::printf("FAULT\t%d\t%s: it did not end\n", worker.number.load(),
                    Job(seed, worker.number).fault.text().c_str());
        std::fflush(stdout);
        std::_Exit(1);
      }
    }
  });
  for (Worker& worker : workers) worker.thread.join();
  over = true;
  watchdog.join();
  return !runs.failed();
}

}  // namespace
}  // namespace sirtaki::faults

int main(int argc, char** argv) {
  using namespace sirtaki::faults;
  const auto argument = [&](int index, int otherwise) { return argc > index ? std::atoi(argv[index]) : otherwise; };
  const int runs = argument(1, 30);
  const int first = argument(4, 0);
  std::thread([] {}).join();  // a sanitizer starts one of its own with the first
  const std::size_t threads = entries("/proc/self/task");
  const std::size_t files = entries("/proc/self/fd");
  bool good = all_runs(first, first + runs, static_cast<std::uint32_t>(argument(2, 1)), argument(3, 6));
  const auto all_gone = [&] { return entries("/proc/self/task") == threads && entries("/proc/self/fd") == files; };
  // The kernel lists a thread for a moment after it has been joined.
  constexpr int kLooks = 200;
  for (int i = 0; i < kLooks && !all_gone(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!all_gone()) {
    std::printf("FAULT\t-\tthreads or files are left\n");
    good = false;
  }
  return good ? 0 : 1;
}
