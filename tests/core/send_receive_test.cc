// Sends and receives of whole engines, through shared memory and through a transport.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <numeric>

#include "engine_jobs.h"
#include "expect.h"
#include "send_receive/mailbox.h"

namespace sirtaki::testing {
namespace {

constexpr std::array kSizes = {1, 2, 3, 5, 8};
using Floats = std::vector<float>;
using Works = std::vector<std::shared_ptr<Work>>;

std::shared_ptr<Work> send(Engine& engine, Floats& data, int to, int tag, int group = 0) {
  return transfer(engine, Verb::kSend, data, to, tag, group);
}
std::shared_ptr<Work> receive(Engine& engine, Floats& data, int from, int tag, int group = 0) {
  return transfer(engine, Verb::kReceive, data, from, tag, group);
}

void on_each_wire(int size, const std::function<void(Engine&, int)>& body, double stall_abort_seconds = 30) {
  for (const bool shared_memory : {true, false}) {
    run_ranks(size, body, [&](int) {
      EngineOptions options = default_options();
      options.settings.shared_memory = shared_memory;
      options.settings.stall_warning_seconds = 1;
      options.settings.stall_abort_seconds = stall_abort_seconds;
      return options;
    });
  }
}

Floats pattern(int from, int to, std::size_t number, std::size_t length) {
  Floats data(length);
  std::iota(data.begin(), data.end(), static_cast<float>(from * 100 + to * 10) + static_cast<float>(number));
  return data;
}

// Empty, small, the largest that travels with its description, the smallest that does not, larger than any ring.
constexpr std::size_t kEager = Mailbox::kEagerBytes / sizeof(float);
constexpr std::array<std::size_t, 5> kLengths = {0, 3, kEager, kEager + 1, 300000};

TEST_CASE("Sends and receives match by source, destination and tag, in order") {
  constexpr std::array<int, 2> tags = {7, 2147483647};
  for (const int size : kSizes) {
    on_each_wire(size, [&](Engine& engine, int rank) {
      std::vector<Floats> sent, received;
      sent.reserve(1000);
      received.reserve(1000);
      Works works;
      for (int peer = 0; peer < size; ++peer) {
        for (std::size_t i = 0; i < 2 * kLengths.size(); ++i) {
          sent.push_back(pattern(rank, peer, i, kLengths[i / 2]));
          works.push_back(send(engine, sent.back(), peer, tags[i % 2]));
        }
      }
      for (int peer = size - 1; peer >= 0; --peer) {
        for (const std::size_t tag : {std::size_t{1}, std::size_t{0}}) {
          for (const std::size_t length : kLengths) {
            received.emplace_back(length);
            works.push_back(receive(engine, received.back(), peer, tags[tag]));
          }
        }
      }
      for (const auto& work : works) wait(work);
      std::size_t next = 0;
      for (int peer = size - 1; peer >= 0; --peer) {
        for (const std::size_t tag : {std::size_t{1}, std::size_t{0}}) {
          for (std::size_t i = 0; i < kLengths.size(); ++i) {
            const bool right = received[next++] == pattern(peer, rank, 2 * i + tag, kLengths[i]);
            CHECK_MESSAGE(right, "from rank ", peer, " to rank ", rank, ", length ", kLengths[i], ", tag ", tags[tag]);
          }
        }
      }
    });
  }
}

TEST_CASE("A rank that waits to receive disturbs neither collectives nor their locked plan") {
  on_each_wire(3, [](Engine& engine, int rank) {
    Floats late(4), value(4, 1.0F);
    std::shared_ptr<Work> waiting;
    if (rank == 0) waiting = receive(engine, late, 2, 0);
    for (int step = 0; step < 20; ++step) {
      Floats data(2, 1.0F);
      wait(allreduce(engine, data, "x"));
      CHECK_MESSAGE(data == Floats(2, 3.0F), "a wrong sum");
      if (step == 10 && rank > 0) {
        Floats other(1, static_cast<float>(rank));
        const auto work = rank == 1 ? send(engine, other, 2, 1) : receive(engine, other, 1, 1);
        while (!engine.wait(*work)) {
        }
        CHECK_MESSAGE(other[0] == 1.0F, "a wrong value");
      }
    }
    if (rank == 2) wait(send(engine, value, 0, 0));
    if (rank == 0) wait(waiting);
    CHECK_MESSAGE((rank != 0 || late == value), "a wrong value");
    CHECK_MESSAGE(engine.statistics().departures == 0, "a send or a receive ended the plan");
    CHECK_MESSAGE(engine.statistics().plans == 1, "no plan");
  });
}

TEST_CASE("Process sets keep their sends apart") {
  on_each_wire(3, [](Engine& engine, int rank) {
    const auto set = static_cast<int>(wait(plain(engine, Verb::kAddProcessSet, {0, 2})).value);
    Floats in_set(1, 5.0F), in_all(1, 6.0F);
    if (rank == 0) {
      const auto first = send(engine, in_set, 2, 0, set);
      const auto second = send(engine, in_all, 2, 0);
      wait(first);
      wait(second);
    }
    if (rank == 2) {
      Floats all(1), own(1);
      wait(receive(engine, all, 0, 0));
      wait(receive(engine, own, 0, 0, set));
      CHECK_MESSAGE((all == in_all && own == in_set), "mixed up");
      check_error(ErrorKind::kInvalidArgument, "rank 1 is not among ranks 0, 2", [&] { send(engine, own, 1, 0, set); });
    }
  });
}

TEST_CASE("Calls of a removed process set meet none of a later set with the same id") {
  on_each_wire(3, [](Engine& engine, int rank) {
    Floats old(1, 1.0F), fresh(1, 2.0F), got(1), unmatched(1), order(1);
    const auto pass = [&](Floats& sent, Floats& received, int tag, int set) {
      if (rank == 0) wait(send(engine, sent, 1, tag, set));
      if (rank == 1) wait(receive(engine, received, 0, tag, set));
    };
    const auto add = [&] { return static_cast<int>(wait(plain(engine, Verb::kAddProcessSet, {0, 1})).value); };
    const int first = add();
    std::shared_ptr<Work> stale;
    if (rank == 0) stale = send(engine, old, 1, 1, first);
    if (rank == 1) stale = receive(engine, unmatched, 0, 2, first);
    pass(order, order, 3, first);  // so rank 1 has read the send above
    wait(plain(engine, Verb::kRemoveProcessSet, {first}));
    const int second = add();
    CHECK_MESSAGE(second == first, "another id");
    pass(fresh, got, 1, second);
    CHECK_MESSAGE((rank != 1 || got == fresh), "the value of the removed set");
    if (stale == nullptr) return;
    check_error(ErrorKind::kPrecondition, "process set " + std::to_string(first) + " was removed",
                [&] { wait(stale); });
  });
}

TEST_CASE("Members alone make a process set and remove it, while another rank waits in a collective") {
  on_each_wire(3, [](Engine& engine, int rank) {
    const auto members_only = [&](Verb verb, std::vector<std::int64_t> splits, int id) {
      Request request;
      request.verb = verb;
      request.splits = std::move(splits);
      request.root = id;
      return engine.queue().put(0, {std::move(request), {}});
    };
    Floats all(1, 1.0F);
    const auto of_all = rank == 1 ? allreduce(engine, all, "all") : nullptr;
    if (rank != 1) {
      CHECK(wait(members_only(Verb::kAddProcessSet, {0, 2}, kFirstMembersOnlySet)).value == kFirstMembersOnlySet);
      Floats data(1, 2.0F);
      wait(allreduce(engine, data, "members", ReduceOp::kSum, kFirstMembersOnlySet));
      CHECK_MESSAGE(data[0] == 4.0F, "a wrong sum");
      check_error(ErrorKind::kInvalidArgument, "id 8192 is not free",
                  [&] { members_only(Verb::kAddProcessSet, {0, 2}, kFirstMembersOnlySet); });
      wait(members_only(Verb::kRemoveProcessSet, {kFirstMembersOnlySet}, -1));
      wait(allreduce(engine, all, "all"));
    } else {
      check_error(ErrorKind::kInvalidArgument, "rank 1 is not among ranks 0, 2",
                  [&] { members_only(Verb::kAddProcessSet, {0, 2}, kFirstMembersOnlySet); });
      wait(of_all);
    }
    CHECK_MESSAGE(all[0] == 3.0F, "a wrong sum");
    CHECK_MESSAGE(!engine.process_sets().contains(kFirstMembersOnlySet), "the set is still there");
  });
}

TEST_CASE("What does not fit together is refused on both ends with the same text, and later sends arrive") {
  const std::string text =
      "rank 0 sends to rank 1 with tag 4 float32 (3,) (12 bytes) at a.py:1, but rank 1 receives float32 (2,) (8 bytes) "
      "at b.py:2; dtype and number of elements must be equal";
  on_each_wire(2, [&](Engine& engine, int rank) {
    Floats data(3, 1.0F), shorter(2), large(300000, 2.0F);
    Request request = request_of(rank == 0 ? Verb::kSend : Verb::kReceive, "", {rank == 0 ? 3 : 2});
    request.root = 1 - rank;
    request.tag = 4;
    request.site = rank == 0 ? "a.py:1" : "b.py:2";
    auto& memory = rank == 0 ? data : shorter;
    const auto misfit = engine.queue().put(0, {request, {{memory.data(), memory.data()}}});
    check_error(ErrorKind::kPrecondition, text, [&] { wait(misfit); });
    CHECK_MESSAGE(shorter == Floats(2), "refused data was written");

    request.tensors = {{DType::kInt32, kHostDevice, {300000}}};
    const auto other_dtype =
        rank == 0 ? engine.queue().put(0, {request, {{large.data(), large.data()}}}) : receive(engine, large, 0, 4);
    check_error(ErrorKind::kPrecondition, "tag 4 int32 (300000,) (1200000 bytes)", [&] { wait(other_dtype); });

    Floats end(300000, rank == 0 ? 3.0F : 0.0F);
    wait(rank == 0 ? send(engine, end, 1, 4) : receive(engine, end, 0, 4));
    CHECK_MESSAGE(end == Floats(300000, 3.0F), "a wrong value");
  });
}

TEST_CASE("Bad arguments are refused at the call") {
  on_each_wire(2, [](Engine& engine, int rank) {
    Floats data(1);
    check_error(ErrorKind::kInvalidArgument, "rank 2 is not among ranks 0, 1", [&] { send(engine, data, 2, 0); });
    check_error(ErrorKind::kInvalidArgument, "the tag is negative", [&] { receive(engine, data, 1 - rank, -1); });
    Request request = request_of(Verb::kSend, "", {1});
    request.root = 1 - rank;
    request.tensors = {{DType::kFloat32, 0, {1}}};
    check_error(ErrorKind::kInvalidArgument, "copy it to the CPU first",
                [&] { engine.queue().put(0, {request, {{data.data(), data.data()}}}); });
  });
}

TEST_CASE("A wait for a rank that has left ends, and so does every later one") {
  on_each_wire(3, [](Engine& engine, int rank) {
    if (rank == 1) return;
    const std::string text = "rank 1 has left (shut down, or the program ended there)";
    Floats data(1), large(300000);
    const auto received = receive(engine, data, 1, 0);
    const auto sent = send(engine, large, 1, 0);
    check_error(ErrorKind::kPrecondition, text, [&] { wait(received); });
    check_error(ErrorKind::kPrecondition, text, [&] { wait(sent); });
    check_error(ErrorKind::kPrecondition, text, [&] { wait(receive(engine, data, 1, 0)); });
    Floats other(1, 4.0F);
    wait(rank == 0 ? send(engine, other, 2, 0) : receive(engine, other, 0, 0));
    CHECK_MESSAGE(other[0] == 4.0F, "the ranks that stay cannot send");
  });
}

TEST_CASE("A shutdown ends what is not matched") {
  on_each_wire(2, [](Engine& engine, int rank) {
    Floats data(1), large(300000);
    const auto work = rank == 0 ? receive(engine, data, 1, 0) : send(engine, large, 0, 1);
    engine.shutdown();
    CHECK_THROWS_AS(wait(work), Error);
  });
}

TEST_CASE("A failure of the job ends every wait with its cause") {
  on_each_wire(3, [](Engine& engine, int rank) {
    Floats data(1), large(300000);
    if (rank == 1) {
      FailureCause cause;
      cause.kind = FailureKind::kException;
      cause.text = "ValueError: no data";
      engine.fail_job(std::move(cause));
      return;
    }
    check_error(ErrorKind::kAborted, "ValueError: no data", [&] {
      const auto received = receive(engine, data, 1, 0);
      const auto sent = send(engine, large, 1, 0);
      wait(received);
      wait(sent);
    });
  });
}

TEST_CASE("A receive that nothing comes for ends the job, and the cause names both ranks") {
  on_each_wire(
      3,
      [](Engine& engine, int rank) {
        Floats data(1);
        check_error(ErrorKind::kAborted, "'receive from rank 1, tag 9' lacks rank 1", [&] {
          if (rank == 2) wait(receive(engine, data, 1, 9));
          while (engine.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          throw Error(ErrorKind::kAborted, engine.failure());
        });
      },
      2);
}

}  // namespace
}  // namespace sirtaki::testing
