// Negotiation without threads or transports: members and a coordinator that exchange messages by hand.
#include "coordinator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "check.h"
#include "response_cache.h"
#include "stall_watch.h"

namespace sirtaki::testing {
namespace {

constexpr std::int64_t kFusion = 1 << 20;

Request allreduce(const std::string& name, Shape shape = {4}) {
  Request request;
  request.name = name;
  request.tensors = {{DType::kFloat32, kHostDevice, std::move(shape)}};
  request.site = "train.py:7";
  return request;
}

std::vector<int> ranks_up_to(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// One member as the group runs it, without its data.
class Member {
 public:
  Vote submit(const Request& request) {
    in_flight_[{request.name, request.sequence}] = request;
    return cache_.vote_for(request);
  }

  // Titles of what runs, batch by batch.
  std::vector<std::vector<std::string>> act_on(const Verdict& verdict) {
    seen = verdict.number;
    std::vector<std::vector<std::string>> ran;
    for (const ItemList& items : verdict.batches) {
      auto& batch = ran.emplace_back();
      for (const Item& item : items) batch.push_back(run(item));
    }
    for (const Slot slot : verdict.forgotten) cache_.forget(slot);
    for (const Refusal& refusal : verdict.refusals) in_flight_.erase({refusal.name, refusal.sequence});
    return ran;
  }

  std::uint64_t seen = 0;
  std::size_t cached() const { return cache_.size(); }
  bool waits_for(const std::string& name) const { return in_flight_.contains({name, 0}); }

 private:
  std::string run(const Item& item) {
    const auto agreement = item.agreement ? std::make_shared<const Agreement>(*item.agreement) : cache_.at(item.slot);
    const auto own = in_flight_.extract({agreement->request.name, item.sequence});
    if (item.agreement && item.slot != kNoSlot) {
      cache_.remember(item.slot, agreement, own.empty() ? nullptr : &own.mapped());
    }
    if (!own.empty() && agreement->request.verb == Verb::kAllreduce) {
      check(own.mapped().tensors[0].shape == agreement->request.tensors[0].shape, "runs what was asked");
    }
    Request shown = agreement->request;
    shown.sequence = item.sequence;
    return shown.title() + to_string(shown.tensors.empty() ? Shape() : shown.tensors[0].shape);
  }

  ResponseCache cache_;
  std::map<std::pair<std::string, std::uint64_t>, Request> in_flight_;
};

struct Fixture {
  explicit Fixture(int size, Settings given = {})
      : settings(given), coordinator(ranks_up_to(size), settings), members(static_cast<std::size_t>(size)) {}

  bool submit(int rank, const Request& request) {
    Member& member = members[static_cast<std::size_t>(rank)];
    Announcement announcement;
    announcement.seen = member.seen;
    announcement.votes = {member.submit(request)};
    const bool by_slot = announcement.votes[0].slot != kNoSlot;
    coordinator.hear(rank, decode_announcement(encode(announcement)), now);
    return by_slot;
  }

  void leave(int rank) {
    Announcement announcement;
    announcement.leaving = true;
    coordinator.hear(rank, announcement, now);
  }

  Verdict decide(bool busy = false) {
    const Verdict verdict = decode_verdict(encode(coordinator.decide(busy, kFusion)));
    for (Member& member : members) last_ran = member.act_on(verdict);
    return verdict;
  }

  Settings settings;
  Coordinator coordinator;
  std::vector<Member> members;
  std::vector<std::vector<std::string>> last_ran;
  Clock::time_point now{};
};

void any_order_of_submission_is_fine() {
  Fixture f(2);
  f.submit(0, allreduce("a"));
  f.submit(1, allreduce("b"));
  check(!f.decide().says_something(), "nothing is ready");
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
  check(!f.decide(true).says_something(), "held back");
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
  check(late.votes[0].slot != kNoSlot, "by slot");
  for (int rank : {0, 1}) f.submit(rank, allreduce("b"));
  check_equal(f.decide().forgotten.size(), 1U, "evicted");
  f.coordinator.hear(1, late, f.now);
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
          coordinator.hear(static_cast<int>(r), up[r].front(), Clock::time_point());
          up[r].pop_front();
        }
        break;
      case 2: {
        const Verdict verdict = coordinator.decide(random() % 2 == 0, 100);
        if (verdict.says_something()) {
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

void stalls_are_told_then_ended() {
  Settings settings;
  settings.stall_warning_seconds = 60;
  settings.stall_abort_seconds = 600;
  Fixture f(3, settings);
  StallWatch watch({0, 1, 2}, {"a", "b", "c"}, settings);
  f.submit(0, allreduce("x"));
  f.submit(1, allreduce("y"));
  const auto look_at = [&](int seconds) { return watch.look(f.coordinator, f.now + std::chrono::seconds(seconds)); };
  check(look_at(59).lines.empty(), "quiet at first");
  const auto first = look_at(61);
  check_equal(first.lines.size(), 1U, "one line");
  check_contains(first.lines[0], "rank");
  check(look_at(100).lines.empty(), "not more than once a minute");
  check_equal(look_at(122).lines.size(), 1U, "again");
  check(look_at(599).abort_cause.empty(), "not yet");
  const auto asks = look_at(600);
  check(asks.ask == std::vector<int>{0, 1, 2} && asks.abort_cause.empty(), "asks those who are missing something");
  Announcement answer;
  answer.report = RankReport{"", "stack of rank 2"};
  f.coordinator.hear(2, answer, f.now);
  check(look_at(601).abort_cause.empty(), "waits for the others a moment");
  const StallWatch::Report last = look_at(604);
  check_equal(last.missing, 0, "as long and as many: the lowest");
  const std::string cause = last.abort_cause;
  for (const char* part : {"rank 0 (a) waits for 'x' from train.py:7", "rank 1 (b) waits for 'y'",
                           "rank 2 (c) waits for nothing", "stack of rank 2", "did not answer"}) {
    check_contains(cause, part);
  }
}

// Rank 2 alone asks for something else, and did so first.
void a_straying_rank_is_blamed() {
  Settings settings;
  settings.stall_warning_seconds = 60;
  settings.stall_abort_seconds = 600;
  Fixture f(4, settings);
  StallWatch watch({4, 5, 6, 7}, {"a", "b", "c", "d"}, settings);
  Request other = allreduce("a stray");
  other.site = "train.py:9";
  f.submit(2, other);
  f.now += std::chrono::seconds(1);
  for (const int rank : {0, 1, 3}) f.submit(rank, allreduce("x"));
  const auto look_at = [&](int seconds) { return watch.look(f.coordinator, f.now + std::chrono::seconds(seconds)); };
  check_contains(look_at(61).lines.at(0), "'x' has waited 61 s for rank 6; ranks 4, 5, 7 reached it at train.py:7");
  f.now += std::chrono::seconds(590);
  f.submit(0, allreduce("y"));
  f.submit(1, allreduce("y"));
  f.submit(2, allreduce("y"));  // lacks one rank, too, but not for long
  f.now -= std::chrono::seconds(590);
  look_at(600);
  const auto report = look_at(604);
  check_equal(report.missing, 2, "whom all others wait for");
  check_equal(report.site, std::string("train.py:9"), "its own line");
  const std::string first = report.abort_cause.substr(0, report.abort_cause.find('\n'));
  check_contains(first, "600 s (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never); 'x' from train.py:7 lacks rank 6.");
  const Cause cause{CauseKind::kPassedLimit, 6, "c", report.abort_cause, 0, report.site, 4};
  check_contains(cause.describe(), "the first one missing is rank 6 on host c, which waits in train.py:9.");
}

void resuming_is_told_once() {
  Fixture f(2);
  StallWatch watch({0, 1}, {"a", "a"}, f.settings);
  f.submit(0, allreduce("x"));
  check_equal(watch.look(f.coordinator, f.now + std::chrono::seconds(70)).lines.size(), 1U, "late");
  f.submit(1, allreduce("x"));
  f.decide();
  const auto report = watch.look(f.coordinator, f.now + std::chrono::seconds(90));
  check_contains(report.lines.at(0), "goes on after 90 s");
  check(watch.look(f.coordinator, f.now + std::chrono::seconds(91)).lines.empty(), "once");
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
  stalls_are_told_then_ended();
  a_straying_rank_is_blamed();
  resuming_is_told_once();
}
