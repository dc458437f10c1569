// Whole engines with fake GPUs, ranks as threads: submissions that are not there yet, results that are not there yet,
// memory made on request, ranks that join, errors that NCCL finds late, and GPUs that fail or are not there.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "fabric/loopback_fabric.h"
#include "fake_device.h"
#include "fake_nccl.h"
#include "observer/gpu_times.h"
#include "plane/gpu/gpu.h"
#include "plane/point_to_point.h"
#include "transport/loopback.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

// A rank's program: its GPU, and the stream that it computes on.
struct Rank {
  Engine& engine;
  FakeDevice& device;
  Stream stream;
  int rank;

  // Asks for the collective when `value` is still to be written into the tensor.
  std::shared_ptr<Work> submit(Verb verb, const std::string& name, std::vector<float>& tensor, float value,
                               Allocate allocate = nullptr) {
    device.call(stream, [&tensor, value] { std::fill(tensor.begin(), tensor.end(), value); });
    Request request;
    request.verb = verb;
    request.name = name;
    request.root = verb == Verb::kBroadcast ? 1 : -1;
    request.tensors = {{DType::kFloat32, 0, {static_cast<std::int64_t>(tensor.size())}}};
    void* out = allocate ? nullptr : tensor.data();
    return engine.queue().put(0,
                              {std::move(request), {{tensor.data(), out}}, std::move(allocate), device.record(stream)});
  }

  // What the tensor holds for whatever is queued on the stream after the wait, as a program would look.
  float seen(const std::shared_ptr<Work>& work, const std::vector<float>& tensor) {
    while (!work->wait()) {
    }
    work->result().output_ready->block_stream(stream);
    float value = 0;
    device.call(stream, [&] { value = tensor.back(); });
    device.record(stream)->block();
    return value;
  }
};

using Usual = std::function<int()>;

void run_ranks(
    int size, const std::string& operations, const std::function<void(Rank&)>& body,
    const Usual& usual = [] { return 0; }) {
  auto transports = make_loopback(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto device = make_fake_device({0, "fake " + std::to_string(r), "", std::size_t{1} << 40});
      mend_fake_nccl(*device);
      EngineOptions options;
      options.program = "test";
      options.log = [](const std::string&) {};
      const MakePlanes make_planes = [&](Transport& transport, const std::vector<int>&) {
        GpuOptions gpus;
        gpus.devices = [&](int) -> Device& { return *device; };
        gpus.usual = usual;
        gpus.load_nccl = [](std::string&) { return fake_nccl(); };
        gpus.operations = operations;
        gpus.log = [](const std::string&) {};
        DataPlanes planes;
        planes.push_back(make_point_to_point_plane(transport));
        planes.push_back(make_gpu_plane(transport, {planes[0].get()}, std::move(gpus)));
        return planes;
      };
      try {
        Engine engine(std::move(options),
                      make_loopback_fabric(std::move(transports[static_cast<std::size_t>(r)]), make_planes));
        Rank rank{engine, *device, device->make_stream(), r};
        body(rank);
        engine.shutdown();
        device->destroy(rank.stream);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d of %d: %s\n", r, size, error.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void check_order(Rank& rank) {
  for (int step = 0; step < 20; ++step) {
    std::vector<std::vector<float>> tensors;
    for (std::size_t i = 0; i < 10; ++i) tensors.emplace_back(100 + i * 70'000 / 9);
    std::vector<std::shared_ptr<Work>> works;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const float value = static_cast<float>(rank.rank + 1) + static_cast<float>(step + static_cast<int>(i));
      works.push_back(rank.submit(Verb::kAllreduce, "t" + std::to_string(i), tensors[i], value));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const float right = 3.0F + 2.0F * static_cast<float>(step + static_cast<int>(i));
      CHECK_MESSAGE(rank.seen(works[i], tensors[i]) == right, "sum of tensor ", i);
    }
  }
}

// The core asks for memory when it knows how much, and says on which stream it will be written.
void check_made_results(Rank& rank) {
  std::vector<float> own(3 + static_cast<std::size_t>(rank.rank));
  std::vector<float> all;
  Stream told = nullptr;
  const auto work = rank.submit(Verb::kAllgather, "g", own, static_cast<float>(rank.rank + 5),
                                [&](std::size_t, const Shape& shape, Stream stream) -> void* {
                                  told = stream;
                                  all.assign(static_cast<std::size_t>(shape[0]), -1.0F);
                                  return all.data();
                                });
  CHECK(rank.seen(work, all) == 6.0F);
  REQUIRE(all.size() == 7);
  CHECK(all.front() == 5.0F);
  REQUIRE_MESSAGE(told != nullptr, "the stream of the plane");
  std::vector<float> sent(9);
  CHECK(rank.seen(rank.submit(Verb::kBroadcast, "b", sent, static_cast<float>(rank.rank)), sent) == 1.0F);
}

void check_join(Rank& rank) {
  std::vector<float> tensor(1000);
  if (rank.rank == 0) CHECK(rank.seen(rank.submit(Verb::kAllreduce, "j", tensor, 4.0F), tensor) == 4.0F);
  Request join;
  join.verb = Verb::kJoin;
  const auto work = rank.engine.queue().put(0, {std::move(join), {}});
  while (!work->wait()) {
  }
}

// One rank's NCCL says that something is wrong with what was queued: the job fails with that on all ranks.
void check_late_error(Rank& rank) {
  std::vector<float> tensor(10);
  rank.seen(rank.submit(Verb::kAllreduce, "good", tensor, 1.0F), tensor);
  if (rank.rank == 0) break_fake_nccl(rank.device);
  wait_until([&] {
    std::vector<float> again(10);
    try {
      rank.seen(rank.submit(Verb::kAllreduce, "late", again, 1.0F), again);
    } catch (const Error& error) {
      rank.device.record(rank.stream)->block();
      return std::string(error.what()).find("remote process exited") != std::string::npos;
    }
    return false;
  });
}

// What asking for a collective or waiting for it throws.
std::string failure(const std::function<std::shared_ptr<Work>()>& submit) {
  try {
    const auto work = submit();
    while (!work->wait()) {
    }
    static_cast<void>(work->result());
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The engine of the rank finds out when it queues the next collective; the other one's may be queued by then.
void check_failed_gpu(Rank& rank) {
  static std::array<std::vector<float>, 2> tensors;  // what is queued may come after the rank's end
  std::vector<float>& tensor = tensors.at(static_cast<std::size_t>(rank.rank));
  tensor.resize(10);
  rank.seen(rank.submit(Verb::kAllreduce, "good", tensor, 1.0F), tensor);
  EventPtr ready = rank.device.record(rank.stream);
  if (rank.rank == 1) rank.device.fail();
  std::string told;
  wait_until([&] {
    told = failure([&] {
      Request request;
      request.verb = Verb::kAllreduce;
      request.name = "bad";
      request.tensors = {{DType::kFloat32, 0, {10}}};
      return rank.engine.queue().put(0, {std::move(request), {{tensor.data(), tensor.data()}}, nullptr, ready});
    });
    return !told.empty();
  });
  CHECK_MESSAGE(told.find("the fake GPU has failed") != std::string::npos, "told: ", told);
}

// A rank that joins is to take part in a collective on GPUs, and has none.
void check_no_usual_gpu(Rank& rank) {
  std::vector<float> tensor(10);
  const std::string told = failure([&] {
    Request join;
    join.verb = Verb::kJoin;
    return rank.rank == 0 ? rank.submit(Verb::kAllreduce, "t", tensor, 1.0F)
                          : rank.engine.queue().put(0, {std::move(join), {}});
  });
  rank.device.record(rank.stream)->block();
  CHECK_MESSAGE(told.find("no CUDA driver") != std::string::npos, "told: ", told);
}

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// A batch's work begins after what it waits for, and ends before its results are seen.
void check_times(Rank& rank, GpuTimes& times) {
  std::vector<float> tensor(1000);
  std::size_t waiting = 0;
  CHECK(rank.seen(rank.submit(Verb::kAllreduce, "a", tensor, 1.0F), tensor) == 2.0F);
  CHECK_MESSAGE(times.take(waiting).empty(), "it is switched off");
  times.switch_to(true);
  std::int64_t after = now();
  for (std::uint64_t number = 2; number < 5; ++number) {
    std::int64_t ready = 0;
    rank.device.call(rank.stream, [&] { ready = now(); });
    CHECK(rank.seen(rank.submit(Verb::kAllreduce, "a", tensor, 1.0F), tensor) == 2.0F);
    const std::vector<GpuTime> taken = times.take(waiting);
    REQUIRE(taken.size() == 1);
    CHECK(waiting == 0);
    CHECK(taken[0].number == number);
    CHECK(taken[0].verb == Verb::kAllreduce);
    CHECK(taken[0].bytes == 4000);
    // Half of the time that a moment takes to be read is unknown.
    const std::int64_t error = (now() - after) / 2;
    CHECK(ready > after);
    CHECK(taken[0].begin >= ready - error);
    CHECK(taken[0].end > taken[0].begin);
    CHECK(taken[0].end <= now() + error);
    after = now();
  }
  times.switch_to(false);
  CHECK(rank.seen(rank.submit(Verb::kAllreduce, "a", tensor, 1.0F), tensor) == 2.0F);
  CHECK_MESSAGE(times.take(waiting).empty(), "it is switched off again");
}

TEST_CASE("Batches of two groups that are queued at the same time have a time each") {
  const auto device = make_fake_device();
  const Stream stream = device->make_stream();
  GpuTimes times;
  times.switch_to(true);
  const BatchEvent first{.group = 0, .number = 1};
  const BatchEvent second{.group = 3, .number = 1};
  times.on_queueing_begun(first, *device, stream);
  times.on_queueing_begun(second, *device, stream);
  times.on_queueing_ended(second, *device, stream);
  device->record(stream)->block();
  std::size_t waiting = 0;
  REQUIRE(times.take(waiting).size() == 1);
  CHECK(waiting == 1);
  times.on_queueing_ended(first, *device, stream);
  device->record(stream)->block();
  const std::vector<GpuTime> taken = times.take(waiting);
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].group == 0);
  CHECK(waiting == 0);
  times.switch_to(false);
  device->destroy(stream);
}

TEST_CASE("A trace has the times of each batch on the GPU, by the host's clock") {
  for (const char* operations : {"nccl", "mpi"}) {
    std::array<GpuTimes, 2> times;
    run_ranks(2, operations, [&](Rank& rank) {
      GpuTimes& own = times[static_cast<std::size_t>(rank.rank)];
      rank.engine.observe(own);
      check_times(rank, own);
    });
  }
}

TEST_CASE("Collectives on GPUs wait for their streams, in order of submission") {
  for (const std::string operations : {"", "mpi"}) {
    run_ranks(2, operations, [](Rank& rank) {
      check_order(rank);
      check_made_results(rank);
      check_join(rank);
    });
  }
}

TEST_CASE("An error that NCCL finds late fails the job on all ranks") { run_ranks(2, "", check_late_error); }

TEST_CASE("A GPU that fails ends the job on all ranks") { run_ranks(2, "", check_failed_gpu); }

TEST_CASE("A joined rank without a GPU fails a collective on GPUs") {
  run_ranks(2, "", check_no_usual_gpu, []() -> int { throw Error(ErrorKind::kPrecondition, "no CUDA driver"); });
}

}  // namespace
}  // namespace sirtaki::contract
