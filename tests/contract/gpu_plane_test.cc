// The plane for GPUs on fake devices, ranks as threads: by way of the host and by a fake NCCL, with and without
// kernels, by the suite that every plane passes; and what only this plane has to do.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "execution/executor.h"
#include "expect.h"
#include "fake_device.h"
#include "fake_nccl.h"
#include "math/half.h"
#include "ordered_plane.h"
#include "plane/gpu/gpu.h"
#include "plane/gpu/gpu_capabilities.h"
#include "plane/gpu/staged.h"
#include "plane/nccl/nccl.h"
#include "plane/point_to_point.h"
#include "plane_suite.h"
#include "random_operation.h"
#include "transport/loopback.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

using testing::check_error;

struct Setup {
  std::string operations{};
  std::string lacks_kernels{};
  std::size_t memory = std::size_t{1} << 40;
  bool nccl = true;
  bool one_card = false;  // all ranks say that they have the same GPU
  bool other_version = false;
  std::vector<int> hosts{};  // by rank, for two levels
  bool sums_only = false;    // between hosts
  std::function<int()> dead_rank{};
};

// A plane that has no maximum, as MPI's.
class SumsOnly final : public DataPlane {
 public:
  explicit SumsOnly(std::unique_ptr<DataPlane> plane) : plane_(std::move(plane)) {}
  std::string_view name() const override { return plane_->name(); }
  bool supports(const PlaneQuery& query) const override {
    return query.op == ReduceOp::kSum && plane_->supports(query);
  }
  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    return plane_->allreduce(reduction, segments);
  }
  Task broadcast(int, std::size_t, std::span<const Segment>) override { std::abort(); }
  Task allgather(std::size_t, const Spread&) override { std::abort(); }
  Task reducescatter(Reduction, const Spread&) override { std::abort(); }
  Task alltoall(std::size_t, const Exchange&) override { std::abort(); }

 private:
  std::unique_ptr<DataPlane> plane_;
};

MakeRail only_sums(MakeRail rails) {
  return [rails = std::move(rails)](const std::vector<int>& ranks) {
    Rail rail = rails(ranks);
    if (rail.plane != nullptr) rail.plane = std::make_unique<SumsOnly>(std::move(rail.plane));
    return rail;
  };
}

// One rank: its device, the stream that its framework computes on, the plane, and what it had to say.
struct Rank {
  std::unique_ptr<FakeDevice> device;
  std::unique_ptr<DataPlane> host;
  std::unique_ptr<DataPlane> plane;
  Stream stream = nullptr;
  std::string told;
  int rank = 0;
  int size = 0;
};

void on_ranks(int size, const Setup& setup, const std::function<void(Rank&)>& body) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Transport& transport = *transports[static_cast<std::size_t>(r)];
      Rank rank;
      rank.rank = r;
      rank.size = size;
      try {
        const std::string identity = setup.one_card ? "fake" : "fake " + std::to_string(r);
        rank.device = make_fake_device({0, identity, setup.lacks_kernels, setup.memory});
        mend_fake_nccl(*rank.device);
        rank.host = make_point_to_point_plane(transport);
        rank.stream = rank.device->make_stream();
        GpuOptions options;
        options.devices = [&](int) -> Device& { return *rank.device; };
        options.usual = [] { return 0; };
        options.load_nccl = [&](std::string& why) -> std::shared_ptr<const NcclLibrary> {
          if (setup.nccl) return fake_nccl(setup.other_version && r == size - 1 ? "2.98.0" : "2.99.0");
          why = "libnccl.so.2: cannot open shared object file";
          return nullptr;
        };
        options.operations = setup.operations;
        options.log = [&](const std::string& line) { rank.told += line; };
        options.dead_rank = setup.dead_rank;
        if (!setup.hosts.empty()) {
          std::string why;
          const MakeRail rails = make_point_to_point_rails(transport);
          options.levels = make_host_levels(transport, setup.hosts, setup.sums_only ? only_sums(rails) : rails, why);
          REQUIRE_MESSAGE(options.levels != nullptr, "no two levels: ", why);
          CHECK_MESSAGE(why.empty(), "no two levels: ", why);
        }
        rank.plane = make_gpu_plane(transport, {rank.host.get()}, std::move(options));
        body(rank);
        rank.plane.reset();
        rank.device->destroy(rank.stream);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", r, size, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void check_suite(const Setup& setup, int size) {
  on_ranks(size, setup, [](Rank& rank) {
    OrderedPlane plane(*rank.plane, *rank.device, rank.stream, rank.rank);
    check_plane_briefly(plane, rank.rank, rank.size);
  });
}

// The bits of what goes by way of the host are those of the host's plane, in any order of sizes and verbs.
void check_bits_by_host(const Setup& setup, int size) {
  on_ranks(size, setup, [](Rank& rank) {
    OrderedPlane plane(*rank.plane, *rank.device, rank.stream, rank.rank);
    std::mt19937 random(7);
    for (int i = 0; i < 60; ++i) {
      RandomOperation operation(plane, rank.rank, rank.size, random);
      wait_until([&] { return operation.advance(); });
    }
  });
}

std::vector<float> sums(Rank& rank, std::span<const Segment> segments, std::vector<std::vector<float>>& outputs) {
  rank.plane->begin({0, {}, 0});
  wait(rank.plane->allreduce({DType::kFloat32, ReduceOp::kSum, 1.0, 0.5}, segments));
  wait(reached(rank.plane->end()));
  std::vector<float> result;
  for (const auto& output : outputs) result.push_back(output.back());
  return result;
}

// A rank that has joined contributes what changes nothing, to tensors large and small, and has no memory for them.
void check_joined(const Setup& setup) {
  on_ranks(2, setup, [](Rank& rank) {
    std::vector<std::vector<float>> tensors = {std::vector<float>(10, 4.0F), std::vector<float>(300'000, 8.0F),
                                               std::vector<float>(3, 16.0F)};
    std::vector<Segment> segments;
    for (auto& tensor : tensors) {
      const bool joined = rank.rank == 1;
      segments.push_back({joined ? nullptr : tensor.data(), joined ? nullptr : tensor.data(),
                          static_cast<std::int64_t>(tensor.size())});
    }
    const std::vector<float> result = sums(rank, segments, tensors);
    const std::vector<float> right =
        rank.rank == 0 ? std::vector<float>{2.0F, 4.0F, 8.0F} : std::vector<float>{4.0F, 8.0F, 16.0F};
    CHECK_MESSAGE(result == right, "a joined rank changed a sum, or its own memory was written");
  });
}

// A factor that is no number of the dtype is applied in float32 and once, whatever the tensor's size.
TEST_CASE("A factor is applied in float32 and once, whatever the tensor's size") {
  on_ranks(3, {}, [](Rank& rank) {
    std::vector<std::vector<Bfloat16>> tensors = {std::vector<Bfloat16>(10, Bfloat16(6.0F)),
                                                  std::vector<Bfloat16>(700'000, Bfloat16(12.0F))};
    std::vector<Segment> segments;
    for (auto& tensor : tensors) {
      segments.push_back({tensor.data(), tensor.data(), static_cast<std::int64_t>(tensor.size())});
    }
    rank.plane->begin({0, {}, 0});
    wait(rank.plane->allreduce({DType::kBfloat16, ReduceOp::kSum, 1.0, 1.0 / 3}, segments));
    wait(reached(rank.plane->end()));
    CHECK_MESSAGE(static_cast<float>(tensors[0].back()) == 6.0F, "average of 6");
    CHECK_MESSAGE(static_cast<float>(tensors[1].back()) == 12.0F, "average of 12");
  });
}

// Tensors that travel in another dtype come back in their own, whatever their size; a third of 3 is exact in both.
TEST_CASE("Tensors that travel in another dtype come back in their own") {
  NcclUniqueId id{};
  fake_nccl()->calls.GetUniqueId(&id);
  on_ranks(3, {}, [&](Rank& rank) {
    NcclCollectives nccl(fake_nccl(), *rank.device, rank.stream, {rank.rank, rank.size, id, true});
    wait(nccl.connect());
    std::vector<std::vector<float>> tensors = {{1.0F + 1.0F / 512}, std::vector<float>(300'001, 2.0F)};
    std::vector<Segment> segments;
    for (auto& tensor : tensors) {
      segments.push_back({tensor.data(), tensor.data(), static_cast<std::int64_t>(tensor.size())});
    }
    wait(nccl.allreduce({DType::kFloat32, ReduceOp::kSum, 3.0, 1.0 / 3}, segments, DType::kBfloat16));
    wait(reached(rank.device->record(rank.stream)));
    CHECK_MESSAGE(tensors[0][0] == 3.0F, "a number that bfloat16 has not was not rounded: ", tensors[0][0]);
    CHECK_MESSAGE(tensors[1].front() == 6.0F, "sum of 2, 2 and 2");
    CHECK_MESSAGE(tensors[1].back() == 6.0F, "sum of 2, 2 and 2");
  });
}

// 16-bit floats accumulate in float32 over hosts, where NCCL alone would round 256 + 1 to 256 each time.
TEST_CASE("16-bit floats accumulate in float32 over hosts") {
  on_ranks(4, {.hosts = {0, 1, 0, 1}}, [](Rank& rank) {
    std::vector<Bfloat16> tensor(700'001, Bfloat16(rank.rank == 0 ? 256.0F : 1.0F));
    const Segment segment{tensor.data(), tensor.data(), static_cast<std::int64_t>(tensor.size())};
    rank.plane->begin({0, {}, 0});
    wait(rank.plane->allreduce({DType::kBfloat16, ReduceOp::kSum, 1.0, 1.0}, {&segment, 1}));
    wait(reached(rank.plane->end()));
    CHECK_MESSAGE(static_cast<float>(tensor.front()) == 260.0F, "256 + 1 + 1 + 1 is ",
                  static_cast<float>(tensor.back()));
    CHECK_MESSAGE(static_cast<float>(tensor.back()) == 260.0F, "256 + 1 + 1 + 1 is ",
                  static_cast<float>(tensor.back()));
  });
}

TEST_CASE("The part of the GPU plane that carries the tensors has a name of its own") {
  const std::vector<std::pair<Setup, std::string>> ways = {
      {{}, "nccl"}, {{.operations = "mpi"}, "gpu-host"}, {{.hosts = {0, 1}}, "hierarchical"}};
  for (const auto& [setup, way] : ways) {
    on_ranks(2, setup, [&way](Rank& rank) {
      std::vector<std::vector<float>> tensors = {{1.0F}};
      const Segment segment{tensors[0].data(), tensors[0].data(), 1};
      CHECK_MESSAGE(sums(rank, {&segment, 1}, tensors)[0] == 1.0F, "sum of ", way);
      CHECK(rank.plane->carrier() == way);
    });
  }
}

TEST_CASE("What no plane between hosts can reduce goes another way than two levels") {
  on_ranks(4, {.hosts = {0, 0, 1, 1}, .sums_only = true}, [](Rank& rank) {
    const int own = rank.rank;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      std::vector<float> tensor(1000, static_cast<float>(own));
      const Segment segment{tensor.data(), tensor.data(), 1000};
      rank.plane->begin({0, {}, 4000});
      wait(rank.plane->allreduce({DType::kFloat32, op}, {&segment, 1}));
      wait(reached(rank.plane->end()));
      CHECK(tensor.back() == (op == ReduceOp::kSum ? 6.0F : 3.0F));
    }
  });
}

TEST_CASE("Hosts with different numbers of ranks have no two levels") {
  auto transports = make_loopback(1);
  const MakeRail rails = make_point_to_point_rails(*transports[0]);
  std::string why;
  CHECK_MESSAGE(make_host_levels(*transports[0], {7}, rails, why) == nullptr, "one host has no levels");
  CHECK_MESSAGE(why.empty(), "one host has no levels");
  CHECK_MESSAGE(make_host_levels(*transports[0], {0, 1, 1}, rails, why) == nullptr, "unequal hosts: ", why);
  CHECK_MESSAGE(why == "the hosts have different numbers of ranks", "unequal hosts: ", why);
}

TEST_CASE("The ranks agree on NCCL from what each has") {
  const GpuCard a{"card a", "2.28.9", "", ""};
  const GpuCard b{"card b", "2.28.9", "", "no NVRTC"};
  CHECK_MESSAGE(common_gpu_capabilities({a, b}, "").nccl, "two good cards");
  CHECK_MESSAGE(!common_gpu_capabilities({a, b}, "").kernels, "two good cards");
  CHECK_MESSAGE(!common_gpu_capabilities({a, b}, "mpi").nccl, "told to use MPI");
  CHECK_MESSAGE(common_gpu_capabilities({a, b}, "mpi").why_not.empty(), "told to use MPI");
  CHECK_MESSAGE(
      common_gpu_capabilities({a, a}, "").why_not.find("ranks 0 and 1 use the same GPU (card a)") != std::string::npos,
      "one card for two ranks");
  const GpuCard none{"card c", "", "libnccl.so.2: no such file", ""};
  CHECK_MESSAGE(common_gpu_capabilities({a, none}, "nccl").refusal == "rank 1 has no NCCL: libnccl.so.2: no such file",
                "no NCCL");
  const GpuCard old{"card d", "2.20.5", "", ""};
  CHECK_MESSAGE(common_gpu_capabilities({a, old}, "").why_not == "rank 0 has NCCL 2.28.9, rank 1 has 2.20.5",
                "two versions");
}

// All ranks are told alike, or go the same other way and one of them says why.
TEST_CASE("All ranks are refused alike, or take the same other way") {
  on_ranks(2, {.operations = "nccl", .nccl = false}, [](Rank& rank) {
    for (int i = 0; i < 2; ++i) {  // the second time as the first
      float one = 1;
      const Segment segment{&one, &one, 1};
      rank.plane->begin({0, {}, 0});
      check_error(ErrorKind::kPrecondition, "rank 0 has no NCCL: libnccl.so.2: cannot open",
                  [&] { wait(rank.plane->allreduce({DType::kFloat32, ReduceOp::kSum, 1, 1}, {&segment, 1})); });
    }
  });
  on_ranks(2, {.one_card = true}, [](Rank& rank) {
    std::vector<std::vector<float>> tensors = {{1.0F}};
    const Segment segment{tensors[0].data(), tensors[0].data(), 1};
    CHECK_MESSAGE(sums(rank, {&segment, 1}, tensors)[0] == 1.0F, "sum by way of the host");
    CHECK_MESSAGE((rank.told.find("ranks 0 and 1 use the same GPU") != std::string::npos) == (rank.rank == 0),
                  "who says what: ", rank.told);
  });
}

// After one that both make, an allreduce that rank 0 makes alone: the event that it waits for, null on rank 1.
EventPtr wait_alone(Rank& rank) {
  static std::vector<float> never_reduced(1);
  std::vector<std::vector<float>> tensors = {{1.0F}};
  Segment segment{tensors[0].data(), tensors[0].data(), 1};
  sums(rank, {&segment, 1}, tensors);
  wait_until([&] { return !rank.plane->watch(); });
  if (rank.rank == 1) return nullptr;
  segment = {never_reduced.data(), never_reduced.data(), 1};
  rank.plane->begin({0, {}, 0});
  wait(rank.plane->allreduce({DType::kFloat32, ReduceOp::kSum, 1, 1}, {&segment, 1}));
  EventPtr output_ready = rank.plane->end();
  CHECK_MESSAGE(!output_ready->reached(), "a collective of one rank of two ended by itself");
  CHECK_MESSAGE(rank.plane->watch(), "a collective of one rank of two ended by itself");
  return output_ready;
}

// A rank that dies while another one's GPU waits for it is noticed, and only then looked for.
TEST_CASE("A rank that dies while a GPU waits for it is noticed") {
  std::atomic<int> dead{-1};
  on_ranks(2, {.dead_rank = [&] { return dead.load(); }}, [&](Rank& rank) {
    const EventPtr output_ready = wait_alone(rank);
    if (output_ready == nullptr) return;
    dead = 1;
    check_error(ErrorKind::kAborted, "the process of rank 1 has died", [&] { rank.plane->watch(); });
    rank.plane->abort();
    output_ready->block();
  });
}

// No room for the fusion buffer: what it is, how much, and what to do.
TEST_CASE("No room for the fusion buffer is an error that says how much was needed") {
  on_ranks(2, {.memory = 1 << 10}, [](Rank& rank) {
    std::vector<std::vector<float>> tensors(2, std::vector<float>(1000, 1.0F));
    const std::vector<Segment> segments = {{tensors[0].data(), tensors[0].data(), 1000},
                                           {tensors[1].data(), tensors[1].data(), 1000}};
    rank.plane->begin({0, {}, 0});
    check_error(ErrorKind::kAborted, "gpu:0 has no room for the fusion buffer of 8000 bytes",
                [&] { wait(rank.plane->allreduce({DType::kFloat32, ReduceOp::kSum, 1, 1}, segments)); });
    rank.plane->abort();
  });
}

// A collective that another rank never joins ends by abort(), and an error that NCCL finds later is thrown by watch().
TEST_CASE("A collective that cannot end is ended by abort()") {
  on_ranks(2, {}, [&](Rank& rank) {
    const EventPtr output_ready = wait_alone(rank);
    if (output_ready == nullptr) return;
    break_fake_nccl(*rank.device);
    check_error(ErrorKind::kAborted, "remote process exited", [&] { rank.plane->watch(); });
    rank.plane->abort();
    output_ready->block();
  });
}

const Setup kHost{.operations = "mpi"};
const Setup kHostWithoutKernels{.operations = "mpi", .lacks_kernels = "no NVRTC"};

TEST_CASE("By way of the host, the bits are those of the host's plane") {
  check_bits_by_host(kHost, 3);
  check_bits_by_host(kHostWithoutKernels, 2);
}

TEST_CASE("The GPU plane passes the plane suite on one host and on two") {
  check_suite({}, 2);
  check_suite({.lacks_kernels = "no NVRTC"}, 3);
  check_suite({.hosts = {3, 5, 3, 5}}, 4);
  check_suite({.lacks_kernels = "no NVRTC", .hosts = {0, 1}}, 2);
}

TEST_CASE("A joined rank changes no sum on GPUs") {
  check_joined({.hosts = {0, 1}});
  for (const Setup& setup : {kHost, kHostWithoutKernels, Setup{}, Setup{.lacks_kernels = "no NVRTC"}}) {
    check_joined(setup);
  }
}

}  // namespace
}  // namespace sirtaki::contract
