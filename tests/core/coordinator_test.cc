// Negotiation without threads or transports: members and a coordinator that exchange messages by hand.
#include "coordinator/coordinator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "negotiation.h"

namespace sirtaki::testing {
namespace {

void any_order_of_submission_is_fine() {
  Fixture f(2);
  f.submit(0, allreduce("a"));
  f.submit(1, allreduce("b"));
  check(!f.decide().has_content(), "nothing is ready");
  f.submit(0, allreduce("b"));
  f.submit(1, allreduce("a"));
  const Verdict verdict = f.decide();
  check_equal(verdict.batches.size(), 1U, "both in one batch");
  check_equal(verdict.batches[0].size(), 2U, "both in one batch");
}

void repeats_go_by_slot() {
  Fixture f(3);
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) check_equal(f.submit(rank, allreduce("a")), step > 0, "vote by slot");
    check_equal(f.decide().batches[0][0].agreement.has_value(), step == 0, "verdict by slot");
  }
}

void a_changed_shape_votes_afresh() {
  Fixture f(2);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  f.decide();
  check(f.submit(0, allreduce("a")), "rank 0 repeats");
  check(!f.submit(1, allreduce("a", {5})), "rank 1 changes");
  const Verdict refused = f.decide();
  check_equal(refused.refusals.size(), 1U, "one refusal");
  check_contains(refused.refusals[0].message, "(4,)");
  check_contains(refused.refusals[0].message, "(5,)");
  for (int rank : {0, 1}) f.submit(rank, allreduce("a", {5}));
  check_equal(f.decide().batches.size(), 1U, "all changed: agreed again");
  for (int rank : {0, 1}) check(f.submit(rank, allreduce("a", {5})), "and remembered");
  f.decide();
}

void every_kind_of_mismatch_is_a_table() {
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
    check_equal(verdict.refusals.size(), 1U, what);
    check_contains(verdict.refusals[0].message, what);
    check_contains(verdict.refusals[0].message, "train.py:8");
    check(verdict.batches.empty(), "nothing runs");
  }
}

void of_many_tensors_the_one_that_differs_is_shown() {
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

void two_gpus_of_different_number_are_no_mismatch() {
  Fixture f(2);
  for (int rank : {0, 1}) {
    Request request = allreduce("a");
    request.tensors = {{DType::kFloat32, rank, request.tensors[0].shape}};
    f.submit(rank, request);
  }
  check_equal(f.decide().batches.size(), 1U, "each rank has its own GPU");
}

void a_second_gpu_of_one_rank_is_refused_on_all() {
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
      check_equal(verdict.batches.size(), 1U, "the GPU that the rank has used before");
      continue;
    }
    check_contains(verdict.refusals.at(0).message, "rank 1 has it on gpu:2 after tensors on gpu:3");
    check_contains(verdict.refusals.at(0).message, "gpu:0");
  }
}

void allgather_collects_rows() {
  Fixture f(2);
  for (int rank : {0, 1}) {
    Request request = allreduce("g", {rank + 2, 3});
    request.verb = Verb::kAllgather;
    f.submit(rank, request);
  }
  const Verdict verdict = f.decide();
  check(verdict.batches[0][0].agreement->sizes == std::vector<std::int64_t>{2, 3}, "rows by rank");
}

// Whichever rank it is that asks for other rows than before, what was remembered no longer holds.
void rows_may_change_on_one_rank() {
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
      check(verdict.batches[0][0].agreement.has_value(), "agreed afresh");
      check(verdict.batches[0][0].agreement->sizes == expected, "the new rows");
    }
  }
}

void work_is_held_back_while_planes_are_busy() {
  Fixture f(2);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  check(!f.decide(true).has_content(), "held back");
  for (int rank : {0, 1}) f.submit(rank, allreduce("b"));
  check_equal(f.decide(false).batches[0].size(), 2U, "then together");
}

void joined_ranks_count_as_present() {
  Fixture f(3);
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  f.submit(0, allreduce("early"));
  f.submit(2, join);
  f.submit(1, allreduce("early"));
  Verdict verdict = f.decide();
  check_equal(verdict.batches[0][0].contributors, 2, "contributors");
  Request gather = allreduce("g");
  gather.verb = Verb::kAllgather;
  f.submit(0, gather);
  verdict = f.decide();
  check_contains(verdict.refusals[0].message, "rank 2 called join()");
  f.submit(1, join);
  f.submit(0, join);
  verdict = f.decide();
  check_equal(verdict.last_joined, 0, "last to join");
  for (int rank : {0, 1, 2}) f.submit(rank, gather);
  check_equal(f.decide().batches.size(), 1U, "after the join all is as before");
}

void joins_are_refused_after_what_counts_on_them() {
  Fixture f(3);
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  f.submit(2, join);
  for (int rank : {0, 1}) f.submit(rank, allreduce("held back"));
  f.leave(1);
  check(f.decide(true).refusals.empty(), "rank 2 still takes part");
  const Verdict verdict = f.decide(false);
  check_equal(verdict.batches.size(), 1U, "what all but the joined rank have asked for");
  check_contains(verdict.refusals[0].message, "join() cannot complete: rank 1 left early");
}

void leaving_early_is_an_error_for_those_who_wait() {
  Fixture f(3);
  f.submit(0, allreduce("a"));
  f.leave(1);
  Verdict verdict = f.decide();
  check_contains(verdict.refusals[0].message, "rank 1 left early");
  f.submit(2, allreduce("a"));
  check_equal(f.decide().refusals.size(), 1U, "later ones too");
  f.leave(0);
  check(!f.decide().all_left, "not all");
  f.leave(2);
  check(f.decide().all_left, "all");
}

void nothing_grows_without_bound() {
  Settings settings;
  settings.cache_capacity = 8;
  Fixture f(2, settings);
  for (int i = 0; i < 1000; ++i) {
    for (int rank : {0, 1}) f.submit(rank, allreduce("name" + std::to_string(i)));
    f.decide();
    check(f.members[0].cached() <= 8 && f.members[1].cached() <= 8, "the members' caches are bounded");
  }
  check(!f.coordinator.has_pending(), "nothing is left over");
}

void a_vote_may_cross_the_eviction_of_its_slot() {
  Settings settings;
  settings.cache_capacity = 1;
  Fixture f(2, settings);
  for (int rank : {0, 1}) f.submit(rank, allreduce("a"));
  f.decide();
  // Rank 1 votes for "a" by slot before it hears of the verdict that evicts the slot.
  Announcement late;
  late.seen = f.members[1].seen;
  late.votes = {f.members[1].submit(allreduce("a"))};
  check(late.votes[0].slot != kNoCacheSlot, "by slot");
  for (int rank : {0, 1}) f.submit(rank, allreduce("b"));
  check_equal(f.decide().forgotten.size(), 1U, "evicted");
  f.coordinator.receive(1, late, f.now);
  f.submit(0, allreduce("a"));
  check_equal(f.decide().batches.size(), 1U, "still understood");
  check(!f.members[1].waits_for("a"), "and run");
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
  for (const auto& other : history) check(other == history[0], "all ranks run the same, seed " + std::to_string(seed));
  check_equal(ran.size(), expected, "everything ran, seed " + std::to_string(seed));
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  any_order_of_submission_is_fine();
  repeats_go_by_slot();
  a_changed_shape_votes_afresh();
  every_kind_of_mismatch_is_a_table();
  of_many_tensors_the_one_that_differs_is_shown();
  two_gpus_of_different_number_are_no_mismatch();
  a_second_gpu_of_one_rank_is_refused_on_all();
  allgather_collects_rows();
  rows_may_change_on_one_rank();
  work_is_held_back_while_planes_are_busy();
  joined_ranks_count_as_present();
  joins_are_refused_after_what_counts_on_them();
  leaving_early_is_an_error_for_those_who_wait();
  nothing_grows_without_bound();
  a_vote_may_cross_the_eviction_of_its_slot();
  for (std::uint32_t seed = 0; seed < 500; ++seed) random_interleavings(seed);
}
