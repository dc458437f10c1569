// Whole engines, ranks as threads over the loopback transport.
#include "engine/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <numeric>
#include <random>

#include "engine_jobs.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

TEST_CASE("Sums and averages are right on 1 to 5 ranks") {
  for (const int size : {1, 2, 3, 5}) {
    run_ranks(size, [size](Engine& engine, int rank) {
      const float total = static_cast<float>(size * (size + 1)) / 2;
      std::vector<float> sum(100000, static_cast<float>(rank + 1));
      std::vector<float> mean(7, static_cast<float>(rank + 1));
      const auto first = allreduce(engine, sum, "sum");
      const auto second = allreduce(engine, mean, "mean", ReduceOp::kAverage);
      wait(first);
      wait(second);
      CHECK(std::all_of(sum.begin(), sum.end(), [&](float v) { return v == total; }));
      CHECK_MESSAGE(std::abs(mean[3] - total / static_cast<float>(size)) < 1e-6F, "mean");
    });
  }
}

TEST_CASE("Shuffled steps with tensors of many sizes give right sums") {
  run_ranks(4, [](Engine& engine, int rank) {
    std::mt19937 random(static_cast<std::uint32_t>(rank));
    std::vector<std::vector<float>> gradients;
    for (std::size_t i = 0; i < 60; ++i) gradients.emplace_back(i * i * 17 % 5000);
    for (int step = 0; step < 20; ++step) {
      if (rank == 0) engine.set_fusion_threshold(step % 3 * 10000);
      std::vector<std::size_t> order(gradients.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Work>> works;
      for (const std::size_t i : order) {
        std::fill(gradients[i].begin(), gradients[i].end(), static_cast<float>(rank + step) + static_cast<float>(i));
        works.push_back(allreduce(engine, gradients[i], "g" + std::to_string(i)));
      }
      for (const auto& work : works) wait(work);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const float expected = static_cast<float>(4 * step + 6) + 4 * static_cast<float>(i);
        CHECK(std::ranges::all_of(gradients[i], [&](float value) { return value == expected; }));
      }
    }
    CHECK_MESSAGE(engine.statistics().cache_hits > engine.statistics().cache_misses, "repeated steps go by slot");
  });
}

TEST_CASE("Tensors may have no name and no elements") {
  run_ranks(3, [](Engine& engine, int) {
    std::vector<float> nothing;
    std::vector<float> one(1, 1.0F);
    for (int i = 0; i < 50; ++i) {
      one[0] = 1;
      const auto first = allreduce(engine, one, "");
      wait(allreduce(engine, nothing, ""));
      wait(first);
      CHECK(one[0] == 3.0F);
    }
  });
}

TEST_CASE("An allgather takes a different number of rows from each rank") {
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(rank * 2), rank);
    Request request = request_of(Verb::kAllgather, "g", {rank, 2}, DType::kInt32);
    Result result = wait(engine.queue().put(0, {request, {{rows.data(), nullptr}}}));
    CHECK(result.shapes[0] == Shape{3, 2});
    const auto* got = reinterpret_cast<const std::int32_t*>(result.buffers[0].data());
    CHECK(std::vector<std::int32_t>(got, got + 6) == std::vector<std::int32_t>{1, 1, 2, 2, 2, 2});
  });
}

TEST_CASE("Broadcast, reducescatter and alltoall deliver the right elements") {
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<double> data(1000, rank);
    Request request = request_of(Verb::kBroadcast, "b", {1000}, DType::kFloat64);
    request.root = 2;
    wait(engine.queue().put(0, {request, {{data.data(), data.data()}}}));
    CHECK(data == std::vector<double>(1000, 2.0));

    std::vector<float> rows(14);
    std::iota(rows.begin(), rows.end(), 0.0F);
    Request scatter = request_of(Verb::kReducescatter, "rs", {7, 2});
    scatter.op = ReduceOp::kAverage;
    Result part = wait(engine.queue().put(0, {scatter, {{rows.data(), nullptr}}}));
    const std::int64_t mine = rank == 0 ? 3 : 2;
    CHECK_MESSAGE((part.shapes[0] == Shape{mine, 2}), "rows of a reducescatter");
    const int first = rank == 0 ? 0 : rank == 1 ? 6 : 10;
    CHECK_MESSAGE(reinterpret_cast<const float*>(part.buffers[0].data())[1] == static_cast<float>(first + 1),
                  "its values");

    std::vector<std::int32_t> sent(6, rank);
    Request exchange = request_of(Verb::kAlltoall, "a", {6}, DType::kInt32);
    exchange.splits = {rank, 1, 2 - rank};
    Result got = wait(engine.queue().put(0, {exchange, {{sent.data(), nullptr}}}));
    const std::vector<std::int64_t> expected = rank == 0   ? std::vector<std::int64_t>{0, 1, 2}
                                               : rank == 1 ? std::vector<std::int64_t>{1, 1, 1}
                                                           : std::vector<std::int64_t>{2, 1, 0};
    CHECK_MESSAGE(got.received_splits == expected, "received splits");
    const auto* values = reinterpret_cast<const std::int32_t*>(got.buffers[0].data());
    for (std::int64_t from = 0, i = 0; from < 3; ++from) {
      for (std::int64_t k = 0; k < expected[static_cast<std::size_t>(from)]; ++k, ++i) {
        CHECK_MESSAGE(values[i] == static_cast<std::int32_t>(from), "value from its rank");
      }
    }
  });
}

// Against the formula, on the whole vectors: pairs at distance 1, then pairs of their results.
std::vector<double> adasum_of(const std::vector<double>& a, const std::vector<double>& b) {
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  std::vector<double> result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  return result;
}

TEST_CASE("Adasum equals its formula") {
  const auto input = [](int rank) {
    std::vector<double> data(101);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::sin(static_cast<double>(i) * (rank + 1)) + rank;
    return data;
  };
  const auto expected = adasum_of(adasum_of(input(0), input(1)), adasum_of(input(2), input(3)));
  run_ranks(4, [&](Engine& engine, int rank) {
    std::vector<double> data = input(rank);
    Request request = request_of(Verb::kAllreduce, "a", {101}, DType::kFloat64);
    request.op = ReduceOp::kAdasum;
    wait(engine.queue().put(0, {request, {{data.data(), data.data()}}}));
    for (std::size_t i = 0; i < data.size(); ++i) CHECK_MESSAGE(std::abs(data[i] - expected[i]) < 1e-12, "adasum");
  });
}

TEST_CASE("Process sets may overlap") {
  run_ranks(4, [](Engine& engine, int rank) {
    const auto even = static_cast<int>(wait(plain(engine, Verb::kAddProcessSet, {2, 0})).value);
    const auto low = static_cast<int>(wait(plain(engine, Verb::kAddProcessSet, {0, 1, 2})).value);
    CHECK_MESSAGE(even == 1, "ids in order");
    CHECK_MESSAGE(low == 2, "ids in order");
    for (int i = 0; i < 30; ++i) {
      std::vector<float> all(10, 1.0F);
      std::vector<float> pair(10, 1.0F);
      std::vector<float> triple(10, 1.0F);
      std::vector<std::shared_ptr<Work>> works;
      // Every rank in another order: sets that overlap must not block each other.
      for (int k = 0; k < 3; ++k) {
        const int which = (k + rank + i) % 3;
        if (which == 0) works.push_back(allreduce(engine, all, "x"));
        if (which == 1 && rank % 2 == 0) works.push_back(allreduce(engine, pair, "x", ReduceOp::kSum, even));
        if (which == 2 && rank < 3) works.push_back(allreduce(engine, triple, "x", ReduceOp::kSum, low));
      }
      for (const auto& work : works) wait(work);
      CHECK(all[0] == 4.0F);
      if (rank % 2 == 0) CHECK(pair[0] == 2.0F);
      if (rank < 3) CHECK(triple[0] == 3.0F);
    }
    if (rank == 3) {
      std::vector<float> data(1);
      const auto error =
          expect_throw<Error>([&] { allreduce(engine, data, "x", ReduceOp::kSum, low); }, "not a member");
      check_contains(error.what(), "rank 3 is not in process set 2");
    }
    wait(plain(engine, Verb::kBarrier));
    wait(plain(engine, Verb::kRemoveProcessSet, {even}));
    CHECK_MESSAGE(wait(plain(engine, Verb::kAddProcessSet, {1, 3})).value == 1, "a freed id is used again");
  });
}

TEST_CASE("A joined rank contributes neutral values") {
  run_ranks(3, [](Engine& engine, int rank) {
    for (int step = 0; step < 3 + rank; ++step) {
      std::vector<float> mean(5, static_cast<float>(rank + 1));
      std::vector<float> least(5, static_cast<float>(rank + 1));
      const auto first = allreduce(engine, mean, "mean", ReduceOp::kAverage);
      wait(allreduce(engine, least, "min", ReduceOp::kMin));
      wait(first);
      const float expected = step < 3 ? 2.0F : step == 3 ? 2.5F : 3.0F;
      CHECK_MESSAGE(mean[0] == expected, "the average is over those who contribute");
      CHECK(least[0] == (step < 3 ? 1.0F : step == 3 ? 2.0F : 3.0F));
    }
    CHECK_MESSAGE(wait(plain(engine, Verb::kJoin)).value == 2, "last to join");
  });
}

TEST_CASE("A collective that runs when its process set is removed is whole or an error") {
  run_ranks(3, [](Engine& engine, int rank) {
    for (int i = 0; i < 10; ++i) {
      const auto set = static_cast<int>(wait(plain(engine, Verb::kAddProcessSet, {0, 1})).value);
      std::vector<float> data(300000, 1.0F);
      std::shared_ptr<Work> work;
      if (rank < 2) work = allreduce(engine, data, "x", ReduceOp::kSum, set);
      wait(plain(engine, Verb::kRemoveProcessSet, {set}));
      if (work == nullptr) continue;
      // Either all of it or an error that says why; never a part.
      try {
        wait(work);
        CHECK_MESSAGE(std::all_of(data.begin(), data.end(), [](float v) { return v == 2.0F; }), "the whole sum");
      } catch (const Error& error) {
        check_contains(error.what(), "was removed");
      }
    }
  });
}

TEST_CASE("shutdown() finishes the work that all ranks have submitted") {
  for (int i = 0; i < 10; ++i) {
    run_ranks(3, [](Engine& engine, int) {
      std::vector<float> data(300000, 1.0F);
      const auto work = allreduce(engine, data, "x");
      engine.shutdown();
      CHECK_MESSAGE(work->done(), "done when shutdown returns");
      wait(work);
      CHECK(std::all_of(data.begin(), data.end(), [](float v) { return v == 3.0F; }));
    });
  }
}

TEST_CASE("Several threads may submit") {
  run_ranks(2, [](Engine& engine, int) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&engine, t] {
        for (int i = 0; i < 50; ++i) {
          std::vector<float> data(100, 1.0F);
          wait(allreduce(engine, data, "t" + std::to_string(t)));
          CHECK(data[99] == 2.0F);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Nobody waits here: the threads that submit do the engines' work a moment at a time, and the callback tells the end.
TEST_CASE("advance() alone finishes small collectives") {
  run_ranks(2, [](Engine& engine, int) {
    for (int i = 0; i < 100; ++i) {
      std::vector<float> data(4, 1.0F);
      std::atomic<bool> ended{false};
      Request request = request_of(Verb::kAllreduce, "small", {4});
      const auto work = engine.queue().put(0, {std::move(request), {{data.data(), data.data()}}}, WakeUp::kByCaller);
      work->then([&ended](Work&) { ended = true; });
      while (!ended) engine.poll(*work);
      CHECK(data[3] == 2.0F);
    }
  });
}

// The callback may be given when the work is done already: the program learns of the result all the same, and no plan
// asks for what came after it at once with what came before.
TEST_CASE("A callback that is set late separates two batches of a plan") {
  run_ranks(2, [](Engine& engine, int) {
    for (int i = 0; i < 12; ++i) {
      for (const char* name : {"first", "second"}) {
        std::vector<float> data(4, 1.0F);
        const auto work = allreduce(engine, data, name);
        wait(work);
        bool told = false;
        engine.follow(*work, [&told](Work&) { told = true; });
        CHECK_MESSAGE(told, "a work that is done calls back at once");
        CHECK(data[3] == 2.0F);
      }
    }
    CHECK(engine.statistics().plans.load() == 1);
    CHECK_MESSAGE(engine.statistics().departures.load() == 0, "departures before the end");
  });
}

TEST_CASE("Nameless tensors are numbered from the start when all ranks have joined") {
  run_ranks(2, [](Engine& engine, int rank) {
    std::vector<float> data(1, 1.0F);
    for (int i = 0; i < 1 + 2 * rank; ++i) wait(allreduce(engine, data, ""));
    wait(plain(engine, Verb::kJoin));
    data[0] = 1.0F;
    wait(allreduce(engine, data, ""));
    CHECK_MESSAGE(data[0] == 2.0F, "sum after join");
  });
  // Two threads of rank 0 have joined; the first goes on before the second learns that all have.
  std::promise<void> joined;
  run_ranks(2, [&joined](Engine& engine, int rank) {
    std::vector<float> data(1, 1.0F);
    std::vector<float> next(1, 1.0F);
    std::shared_ptr<Work> early;
    if (rank == 0) {
      const auto first = plain(engine, Verb::kJoin);
      const auto second = plain(engine, Verb::kJoin);
      first->then([&](Work&) { early = allreduce(engine, data, ""); });
      joined.set_value();
      wait(second);
    } else {
      joined.get_future().wait();
      wait(allreduce(engine, data, "alone"));
      wait(plain(engine, Verb::kJoin));
      early = allreduce(engine, data, "");
    }
    wait(allreduce(engine, next, ""));
    wait(early);
    CHECK_MESSAGE(data[0] == 2.0F, "the first sum after join");
    CHECK_MESSAGE(next[0] == 2.0F, "the second sum after join");
  });
}

// Threads that wait take the engine's work in turns with its own thread, while others submit what nobody waits for yet.
TEST_CASE("Waiting threads do the engine's work") {
  constexpr int kThreads = 3;
  constexpr int kRounds = 200;
  run_ranks(3, [](Engine& engine, int rank) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&engine, rank, t] {
        std::vector<float> later(64);
        for (int round = 0; round < kRounds; ++round) {
          std::vector<float> now(16, static_cast<float>(rank + round));
          later.assign(64, 1);
          const std::string name = std::to_string(t);
          const auto pending = allreduce(engine, later, "later" + name);
          Request request = request_of(Verb::kAllreduce, "now" + name, {16});
          request.op = ReduceOp::kSum;
          const auto work = engine.queue().put(0, {std::move(request), {{now.data(), now.data()}}}, WakeUp::kByCaller);
          for (bool help = true; !engine.wait(*work, help);) help = false;
          work->result();
          CHECK_MESSAGE(now[15] == static_cast<float>(3 + 3 * round), "the sum that was waited for");
          for (bool help = true; !engine.wait(*pending, help);) help = false;
          pending->result();
          CHECK_MESSAGE(later[63] == 3.0F, "the other sum");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace sirtaki::testing
