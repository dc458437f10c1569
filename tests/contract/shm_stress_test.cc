// The shared-memory plane under random operations on overlapping process sets, with random delays: shm_stress_test
// [seconds] [seed]. Ranks are threads that, like engines, each poll the operations of several sets at once. Every
// result is compared to the bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "plane/shm/shm.h"
#include "random_operation.h"
#include "transport/loopback.h"

namespace sirtaki::contract {
namespace {

using Clock = std::chrono::steady_clock;

const std::vector<std::vector<int>> kSets = {{0, 1, 2, 3}, {0, 1, 2}, {3, 1}};
constexpr int kRanks = 4;
constexpr int kOperations = 6;  // in each set, before the ranks meet

// One set as one rank sees it.
class Member {
 public:
  Member(std::unique_ptr<Transport> transport, std::unique_ptr<ShmSegment> segment, std::uint32_t seed)
      : transport_(std::move(transport)), plane_(make_shm_plane(*transport_, std::move(segment))), random_(seed) {}

  void begin_round() { left_ = kOperations; }
  bool finished() const { return left_ == 0; }

  void poll() {
    if (finished()) return;
    if (!running_) running_.emplace(*plane_, transport_->rank(), transport_->size(), random_);
    if (!running_->advance()) return;
    running_.reset();
    --left_;
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<DataPlane> plane_;
  std::mt19937 random_;
  std::optional<RandomOperation> running_;
  int left_ = 0;
};

struct Job {
  std::uint32_t seed;
  Clock::time_point end;
  std::vector<std::shared_ptr<std::byte>> memory;  // of each set
  std::atomic<bool> over{false};
  std::atomic<int> rounds{0};
};

std::shared_ptr<std::byte> zeroed(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{128};
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  std::fill_n(memory, bytes, std::byte{0});
  return {memory, [](std::byte* address) { ::operator delete(address, kAlignment); }};
}

std::vector<std::unique_ptr<Member>> join_sets(const Job& job, Transport& world) {
  std::vector<std::unique_ptr<Member>> members;
  for (std::size_t i = 0; i < kSets.size(); ++i) {
    auto transport = world.split(kSets[i]);
    if (transport == nullptr) continue;
    auto segment = ShmSegment::of_threads(job.memory[i], shm_plane_bytes(transport->size()));
    members.push_back(
        std::make_unique<Member>(std::move(transport), std::move(segment), job.seed + static_cast<std::uint32_t>(i)));
  }
  return members;
}

void delay(std::mt19937& random) {
  if (random() % 50 != 0) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  }
}

template <class Barrier>
void run_rank(Job& job, Transport& world, Barrier& barrier) {
  auto members = join_sets(job, world);
  std::mt19937 own_random(job.seed * 31 + static_cast<std::uint32_t>(world.rank()));
  while (!job.over) {
    for (auto& member : members) member->begin_round();
    while (!std::all_of(members.begin(), members.end(), [](const auto& member) { return member->finished(); })) {
      members[own_random() % members.size()]->poll();
      delay(own_random);
    }
    barrier.arrive_and_wait();
  }
}

void run(double seconds, std::uint32_t seed) {
  Job job{
      .seed = seed, .end = Clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000)), .memory = {}};
  for (const auto& set : kSets) job.memory.push_back(zeroed(shm_plane_bytes(static_cast<int>(set.size()))));
  std::barrier barrier(kRanks, [&job]() noexcept {
    ++job.rounds;
    job.over = Clock::now() >= job.end;
  });
  auto transports = make_loopback(kRanks);
  std::vector<std::thread> threads;
  for (auto& transport : transports) {
    threads.emplace_back([&job, &barrier, &world = *transport] {
      try {
        run_rank(job, world, barrier);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "seed %u: %s\n", job.seed, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d operations in each of %zu sets\n", job.rounds * kOperations, kSets.size());
}

double seconds = 3;
std::uint32_t seed = 1;

TEST_CASE("Random operations on overlapping process sets give the expected bits") { run(seconds, seed); }

}  // namespace
}  // namespace sirtaki::contract

int main(int argc, char** argv) {
  using namespace sirtaki::contract;
  if (argc > 1) seconds = std::atof(argv[1]);
  if (argc > 2) seed = static_cast<std::uint32_t>(std::atoi(argv[2]));
  return doctest::Context(argc, argv).run();
}
