// Negotiation without threads or transports: members and a coordinator that exchange messages by hand.
#include "coordinator/coordinator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "expect.h"
#include "negotiation.h"

namespace sirtaki::testing {
namespace {

TEST_CASE("Ranks may submit in different orders") {
  Fixture f(2);
  f.submit(0, allreduce("a"));
  f.submit(1, allreduce("b"));
  CHECK_MESSAGE(!f.decide().has_content(), "nothing is ready");
  f.submit(0, allreduce("b"));
  f.submit(1, allreduce("a"));
  const Verdict verdict = f.decide();
  REQUIRE_MESSAGE(verdict.batches.size() == 1U, "both in one batch");
  REQUIRE_MESSAGE(verdict.batches[0].size() == 2U, "both in one batch");
}

TEST_CASE("A repeated request is sent as its cache slot") {
  Fixture f(3);
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) CHECK_MESSAGE(f.submit(rank, allreduce("a")) == (step > 0), "vote by slot");
    CHECK_MESSAGE(f.decide().batches[0][0].agreement.has_value() == (step == 0), "verdict by slot");
  }
}

TEST_CASE("A changed shape is negotiated again in full") {
  Fixture f(2);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  f.decide();
  CHECK_MESSAGE(f.submit(0, allreduce("a")), "rank 0 repeats");
  CHECK_MESSAGE(!f.submit(1, allreduce("a", {5})), "rank 1 changes");
  const Verdict refused = f.decide();
  REQUIRE_MESSAGE(refused.refusals.size() == 1U, "one refusal");
  check_contains(refused.refusals[0].message, "(4,)");
  check_contains(refused.refusals[0].message, "(5,)");
  for (int rank : {0, 1}) f.submit(rank, allreduce("a", {5}));
  REQUIRE_MESSAGE(f.decide().batches.size() == 1U, "all changed: agreed again");
  for (int rank : {0, 1}) CHECK_MESSAGE(f.submit(rank, allreduce("a", {5})), "and remembered");
  f.decide();
}

TEST_CASE("Every kind of mismatch is refused with a table of the ranks") {
  using Change = std::pair<std::string, std::function<void(Request&)>>;
  const Change changes[] = {
      {"collective", [](Request& r) { r.verb = Verb::kBroadcast, r.root = 0; }},
      {"op differs", [](Request& r) { r.op = ReduceOp::kMin; }},
      {"dtype", [](Request& r) { r.tensors = {{DType::kInt32, kHostDevice, r.tensors[0].shape}}; }},
      {"device", [](Request& r) { r.tensors = {{r.tensors[0].dtype, 0, r.tensors[0].shape}}; }},
      {"shape", [](Request& r) { r.tensors = {{r.tensors[0].dtype, kHostDevice, {2, 2}}}; }},
      {"number of tensors", [](Request& r) { r.tensors = {r.tensors[0], r.tensors[0]}; }},
      {"prescale", [](Request& r) { r.prescale = 2; }},
      {"postscale", [](Request& r) { r.postscale = 2; }},
  };
  for (const auto& [what, change] : changes) {
    Fixture f(3);
    Request odd = allreduce("a");
    odd.site = "train.py:8";
    change(odd);
    f.submit(0, allreduce("a"));
    f.submit(1, odd);
    f.submit(2, allreduce("a"));
    const Verdict verdict = f.decide();
    REQUIRE_MESSAGE(verdict.refusals.size() == 1U, what);
    check_contains(verdict.refusals[0].message, what);
    check_contains(verdict.refusals[0].message, "train.py:8");
    CHECK_MESSAGE(verdict.batches.empty(), "nothing runs");
  }
}

TEST_CASE("Of many tensors the error shows the first that differs") {
  Fixture f(2);
  for (const int rank : {0, 1}) {
    std::vector<TensorSpec> tensors;
    for (std::int64_t i = 0; i < 20; ++i) tensors.push_back({DType::kFloat32, kHostDevice, {100 + i}});
    if (rank == 1) tensors[12].shape = {7};
    Request request = allreduce("many");
    request.tensors = TensorSpecs(std::move(tensors));
    f.submit(rank, request);
  }
  const std::string message = f.decide().refusals[0].message;
  check_contains(message, "shape differs from tensor number 13 on");
  check_contains(message, "... (112,)");
  check_contains(message, "... (7,)");
  check_contains(message, "(20 tensors)");
}

TEST_CASE("Ranks may use GPUs of different numbers") {
  Fixture f(2);
  for (int rank : {0, 1}) {
    Request request = allreduce("a");
    request.tensors = {{DType::kFloat32, rank, request.tensors[0].shape}};
    f.submit(rank, request);
  }
  REQUIRE_MESSAGE(f.decide().batches.size() == 1U, "each rank has its own GPU");
}

TEST_CASE("A second GPU of one rank is refused on every rank") {
  Fixture f(2);
  for (const int second : {0, 1, 0}) {
    const std::string name = "a" + std::to_string(second);
    for (int rank : {0, 1}) {
      Request request = allreduce(name);
      const int device = rank == 0 ? 0 : second == 0 ? 3 : 2;
      request.tensors = {{DType::kFloat32, device, request.tensors[0].shape}};
      f.submit(rank, request);
    }
    const Verdict verdict = f.decide();
    if (second == 0) {
      REQUIRE_MESSAGE(verdict.batches.size() == 1U, "the GPU that the rank has used before");
      continue;
    }
    check_contains(verdict.refusals.at(0).message, "rank 1 has it on gpu:2 after tensors on gpu:3");
    check_contains(verdict.refusals.at(0).message, "gpu:0");
  }
}

TEST_CASE("An allgather agrees on the rows of every rank") {
  Fixture f(2);
  for (int rank : {0, 1}) {
    Request request = allreduce("g", {rank + 2, 3});
    request.verb = Verb::kAllgather;
    f.submit(rank, request);
  }
  const Verdict verdict = f.decide();
  CHECK_MESSAGE((verdict.batches[0][0].agreement->sizes == std::vector<std::int64_t>{2, 3}), "rows by rank");
}

// Whichever rank it is that asks for other rows than before, what was remembered no longer holds.
TEST_CASE("The rows of an allgather may change on one rank alone") {
  for (const int changing : {0, 1}) {
    Fixture f(2);
    for (const int more : {0, 0, 5}) {
      for (const int rank : {0, 1}) {
        Request request = allreduce("g", {2 + (rank == changing ? more : 0)});
        request.verb = Verb::kAllgather;
        f.submit(rank, request);
      }
      const Verdict verdict = f.decide();
      if (more == 0) continue;
      const std::vector<std::int64_t> expected =
          changing == 0 ? std::vector<std::int64_t>{7, 2} : std::vector<std::int64_t>{2, 7};
      REQUIRE_MESSAGE(verdict.batches[0][0].agreement.has_value(), "agreed afresh");
      CHECK_MESSAGE(verdict.batches[0][0].agreement->sizes == expected, "the new rows");
    }
  }
}

TEST_CASE("A name whose sizes change in each step does not keep the other names from a plan") {
  Fixture f(2);
  std::vector<std::vector<CacheSlot>> planned;
  for (int step = 0; step < 20 && planned.empty(); ++step) {
    for (const int rank : {0, 1}) {
      Request gather = allreduce("g", {step + 1});
      gather.verb = Verb::kAllgather;
      f.submit(rank, allreduce("a"));
      f.submit(rank, gather);
    }
    planned = f.decide(false, true).plan;
  }
  REQUIRE_MESSAGE(planned.size() == 1U, "a plan of one batch");
  CHECK_MESSAGE(planned[0].size() == 1U, "which is the allreduce");
}

TEST_CASE("New batches wait while the planes are busy") {
  Fixture f(2);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  CHECK_MESSAGE(!f.decide(true).has_content(), "held back");
  for (int rank : {0, 1}) f.submit(rank, allreduce("b"));
  REQUIRE_MESSAGE(f.decide(false).batches[0].size() == 2U, "then together");
}

TEST_CASE("Joined ranks count as present") {
  Fixture f(3);
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  f.submit(0, allreduce("early"));
  f.submit(2, join);
  f.submit(1, allreduce("early"));
  Verdict verdict = f.decide();
  CHECK(verdict.batches[0][0].contributors == 2);
  Request gather = allreduce("g");
  gather.verb = Verb::kReducescatter;
  f.submit(0, gather);
  verdict = f.decide();
  check_contains(verdict.refusals[0].message, "rank 2 called join()");
  f.submit(1, join);
  f.submit(0, join);
  verdict = f.decide();
  CHECK_MESSAGE(verdict.last_joined == 0, "last to join");
  for (int rank : {0, 1, 2}) f.submit(rank, gather);
  REQUIRE_MESSAGE(f.decide().batches.size() == 1U, "after the join all is as before");
}

TEST_CASE("A joined rank contributes no rows") {
  Fixture f(3);
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  Request gather = allreduce("g");
  gather.verb = Verb::kAllgather;
  for (int rank : {0, 1, 2}) f.submit(rank, gather);
  CHECK(f.decide().batches[0][0].agreement->sizes == std::vector<std::int64_t>{4, 4, 4});
  f.submit(2, join);
  for (int rank : {0, 1}) f.submit(rank, gather);
  const Verdict verdict = f.decide();
  REQUIRE_MESSAGE(verdict.batches[0][0].agreement, "the stored numbers of rows count rank 2");
  CHECK(verdict.batches[0][0].agreement->sizes == std::vector<std::int64_t>{4, 4, 0});
  Request exchange = allreduce("x", {3});
  exchange.verb = Verb::kAlltoall;
  for (int rank : {0, 1}) f.submit(rank, exchange);
  check_contains(f.decide().refusals[0].message, "rows are sent to rank 2, which called join()");
  Request broadcast = allreduce("b");
  broadcast.verb = Verb::kBroadcast;
  broadcast.root = 2;
  f.submit(0, broadcast);
  check_contains(f.decide().refusals[0].message, "its root, rank 2, called join()");
  for (int rank : {0, 1}) f.submit(rank, join);
  f.decide();
  for (int rank : {0, 1, 2}) f.submit(rank, gather);
  CHECK_MESSAGE(!f.decide().batches[0][0].agreement, "by its slot, with the rows of all");
}

TEST_CASE("A join is refused only after the batches that count on the joined rank") {
  Fixture f(3);
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  f.submit(2, join);
  for (int rank : {0, 1}) f.submit(rank, allreduce("held back"));
  f.leave(1);
  CHECK_MESSAGE(f.decide(true).refusals.empty(), "rank 2 still takes part");
  const Verdict verdict = f.decide(false);
  REQUIRE_MESSAGE(verdict.batches.size() == 1U, "what all but the joined rank have asked for");
  check_contains(verdict.refusals[0].message, "join() cannot complete: rank 1 left early");
}

TEST_CASE("A rank that leaves early is an error for the ranks that wait") {
  Fixture f(3);
  f.submit(0, allreduce("a"));
  f.leave(1);
  Verdict verdict = f.decide();
  check_contains(verdict.refusals[0].message, "rank 1 left early");
  f.submit(2, allreduce("a"));
  REQUIRE_MESSAGE(f.decide().refusals.size() == 1U, "later ones too");
  f.leave(0);
  CHECK_MESSAGE(!f.decide().all_left, "not all");
  f.leave(2);
  CHECK_MESSAGE(f.decide().all_left, "all");
}

TEST_CASE("The caches stay within their capacity") {
  Settings settings;
  settings.cache_capacity = 8;
  Fixture f(2, settings);
  for (int i = 0; i < 1000; ++i) {
    for (int rank : {0, 1}) f.submit(rank, allreduce("name" + std::to_string(i)));
    f.decide();
    CHECK_MESSAGE(f.members[0].cached() <= 8, "the members' caches are bounded");
    CHECK_MESSAGE(f.members[1].cached() <= 8, "the members' caches are bounded");
  }
  CHECK_MESSAGE(!f.coordinator.has_pending(), "nothing is left over");
}

TEST_CASE("A vote by slot is understood although its slot is evicted meanwhile") {
  Settings settings;
  settings.cache_capacity = 1;
  Fixture f(2, settings);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  f.decide();
  // Rank 1 votes for "a" by slot before it hears of the verdict that evicts the slot.
  Announcement late;
  late.seen = f.members[1].seen;
  late.votes = {f.members[1].submit(allreduce("a"))};
  CHECK_MESSAGE(late.votes[0].slot != kNoCacheSlot, "by slot");
  for (int rank : {0, 1}) f.submit(rank, allreduce("b"));
  REQUIRE(f.decide().forgotten.size() == 1U);
  f.coordinator.receive(1, late, f.now);
  f.submit(0, allreduce("a"));
  REQUIRE_MESSAGE(f.decide().batches.size() == 1U, "still understood");
  CHECK_MESSAGE(!f.members[1].waits_for("a"), "and run");
}

// Random programs on random ranks with random delays: every rank runs the same batches in the same order, and
// everything that all ranks submit runs.
void random_interleavings(std::uint32_t seed) {
  std::mt19937 random(seed);
  const int size = 2 + static_cast<int>(random() % 4);
  Settings settings;
  settings.cache_capacity = static_cast<int>(random() % 6);
  Coordinator coordinator(ranks_up_to(size), settings);
  std::vector<Member> members(static_cast<std::size_t>(size));
  std::vector<std::deque<Announcement>> up(static_cast<std::size_t>(size));
  std::vector<std::deque<Verdict>> down(static_cast<std::size_t>(size));
  std::vector<std::vector<std::vector<std::string>>> history(static_cast<std::size_t>(size));
  std::vector<std::vector<Request>> to_do(static_cast<std::size_t>(size));
  std::size_t expected = 0;
  for (int step = 0; step < 6; ++step) {
    std::vector<Request> wave;
    for (int i = 0; i < 5; ++i) {
      Request request = allreduce("t" + std::to_string(random() % 8), {static_cast<int>(random() % 3)});
      request.sequence = static_cast<std::uint64_t>(step * 10 + i);  // unique
      wave.push_back(request);
    }
    expected += wave.size();
    for (auto& list : to_do) {
      std::shuffle(wave.begin(), wave.end(), random);
      list.insert(list.end(), wave.begin(), wave.end());
    }
  }
  const auto pending = [&] {
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (!to_do[r].empty() || !up[r].empty() || !down[r].empty()) return true;
    }
    return coordinator.has_pending();
  };
  while (pending()) {
    const auto r = random() % members.size();
    switch (random() % 4) {
      case 0:
        if (!to_do[r].empty()) {
          Announcement announcement;
          announcement.seen = members[r].seen;
          announcement.votes = {members[r].submit(to_do[r].front())};
          to_do[r].erase(to_do[r].begin());
          up[r].push_back(announcement);
        }
        break;
      case 1:
        if (!up[r].empty()) {
          coordinator.receive(static_cast<int>(r), up[r].front(), Clock::time_point());
          up[r].pop_front();
        }
        break;
      case 2: {
        const Verdict verdict = coordinator.decide(random() % 2 == 0, 100);
        if (verdict.has_content()) {
          for (auto& queue : down) queue.push_back(verdict);
        }
        break;
      }
      default:
        if (!down[r].empty()) {
          for (auto& batch : members[r].act_on(down[r].front())) history[r].push_back(batch);
          down[r].pop_front();
        }
    }
  }
  std::set<std::string> ran;
  for (const auto& batch : history[0]) ran.insert(batch.begin(), batch.end());
  for (const auto& other : history) CHECK_MESSAGE(other == history[0], "all ranks run the same, seed ", seed);
  CHECK_MESSAGE(ran.size() == expected, "everything ran, seed ", seed);
}

TEST_CASE("In random interleavings all ranks run the same batches") {
  for (std::uint32_t seed = 0; seed < 500; ++seed) random_interleavings(seed);
}

}  // namespace
}  // namespace sirtaki::testing
