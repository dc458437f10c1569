// The shared-memory plane against the same MPI's MPI_Allreduce, without the engine: mpiexec -n N plane_benchmark
// [largest bytes] [seconds a size] [pin].
//
// Both reduce float32 in place. They take turns, in blocks of operations; each rank rewrites its buffer before each
// operation, as a backward pass does. Shown is the median over the operations on the rank where it is largest.
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/host_buffer.h"
#include "host/wait_for.h"
#include "mpi/mpi_session.h"
#include "plane/shm/shm.h"
#include "transport/mpi.h"

namespace sirtaki {
namespace {

using Clock = std::chrono::steady_clock;
using Operation = std::function<void(float* data, std::int64_t count)>;

struct Job {
  int rank;
  int size;
  double seconds;
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void rewrite(float* data, std::int64_t count, int rank) {
  for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(rank + i % 7);
}

void check_sum(const float* data, std::int64_t count, int size) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto right = static_cast<float>(size * (size - 1) / 2 + size * static_cast<int>(i % 7));
    if (data[i] != right) throw std::runtime_error("element " + std::to_string(i) + " is " + std::to_string(data[i]));
  }
}

double time_of(const Operation& operation, float* data, std::int64_t count, int rank) {
  rewrite(data, count, rank);
  const auto start = Clock::now();
  operation(data, count);
  return microseconds_since(start);
}

// How many operations are worth their time; the same on all ranks.
int operations_within(const Job& job, const Operation& operation, float* data, std::int64_t count) {
  time_of(operation, data, count, job.rank);
  const double once = time_of(operation, data, count, job.rank);
  int operations = static_cast<int>(std::clamp(job.seconds * 1e6 / once, 2.0, 1e4));
  MPI_Bcast(&operations, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return operations;
}

double largest_median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  double median = times[times.size() / 2];
  MPI_Allreduce(MPI_IN_PLACE, &median, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return median;
}

std::vector<double> measure(const Job& job, const std::vector<Operation>& ways, std::int64_t count) {
  constexpr int kBlocks = 10;
  const HostBuffer buffer(static_cast<std::size_t>(count) * sizeof(float));
  auto* data = reinterpret_cast<float*>(buffer.data());
  std::vector<int> operations;
  for (const Operation& way : ways) operations.push_back(operations_within(job, way, data, count));
  std::vector<std::vector<double>> times(ways.size());
  for (int block = 0; block < kBlocks; ++block) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const int share = (operations[way] * (block + 1)) / kBlocks - operations[way] * block / kBlocks;
      if (share == 0) continue;
      MPI_Barrier(MPI_COMM_WORLD);
      for (int i = 0; i < share; ++i) times[way].push_back(time_of(ways[way], data, count, job.rank));
      check_sum(data, count, job.size);
    }
  }
  std::vector<double> medians;
  for (const auto& each : times) medians.push_back(largest_median(each));
  return medians;
}

// That this process may use.
std::vector<std::size_t> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  std::vector<std::size_t> cores;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

void pin(int rank, const std::vector<std::size_t>& cores) {
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cores[static_cast<std::size_t>(rank) % cores.size()], &own);
  sched_setaffinity(0, sizeof(own), &own);
}

void run(MpiSession& session, std::int64_t largest, double seconds, bool pinned) {
  MpiTransport transport(session.world());
  const Job job{transport.rank(), transport.size(), seconds};
  const std::vector<std::size_t> cores = allowed_cores();
  if (pinned) pin(job.rank, cores);
  std::string why;
  const auto plane = make_shm_plane(transport, why);
  if (plane == nullptr) throw std::runtime_error(why);
  const bool cores_are_free = job.size <= static_cast<int>(cores.size());
  const std::vector<Operation> ways = {[](float* data, std::int64_t count) {
                                         MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                                       MPI_COMM_WORLD);
                                       },
                                       [&](float* data, std::int64_t count) {
                                         const Segment segment{data, data, count};
                                         Task task = plane->allreduce({}, {&segment, 1});
                                         while (!task.advance()) {
                                           if (!cores_are_free) usleep(1);  // as an engine naps
                                         }
                                       }};
  if (job.rank == 0) std::printf("%10s %12s %12s %8s   %d ranks, us\n", "bytes", "MPI", "shm", "ratio", job.size);
  for (std::int64_t bytes = 64; bytes <= largest; bytes *= 4) {
    const std::vector<double> medians = measure(job, ways, bytes / 4);
    if (job.rank != 0) continue;
    std::printf("%10ld %12.2f %12.2f %8.2f\n", static_cast<long>(bytes), medians[0], medians[1],
                medians[0] / medians[1]);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sirtaki

int main(int argc, char** argv) {
  try {
    const std::int64_t largest = argc > 1 ? std::atoll(argv[1]) : std::int64_t{64} << 20;
    // MPI takes fewer locks than if several threads called it.
    sirtaki::MpiSession session(sirtaki::load_mpi({}), sirtaki::MpiThreads::kSerialized);
    sirtaki::run(session, largest, argc > 2 ? std::atof(argv[2]) : 0.5, argc > 3);
    session.finalize();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plane_benchmark: %s\n", error.what());
    return 1;
  }
}
