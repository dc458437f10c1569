// One rank's plan follower beside another's, without votes: which submissions it takes, what it runs, and what it gives
// back to be voted for when a rank departs.
#include "locked_plan/plan_follower.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "expect.h"
#include "fabric/loopback_fabric.h"
#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

Request request_of(const std::string& name, std::int64_t count = 2) {
  Request request;
  request.name = name;
  request.tensors = {{DType::kFloat64, kHostDevice, {count}}};
  return request;
}

class Member final : public PlanOwner, public SubmissionOwner {
 public:
  Member(int rank, std::unique_ptr<Transport> transport)
      : follower(3, rank, 2, make_channel(std::move(transport)), *this, *this, observers_) {}
  ~Member() { follower.fail_all(Error(ErrorKind::kAborted, "the test is over")); }

  // True if the plan takes it.
  bool submit(Request request) {
    data_.push_back(std::vector<double>(2, 1.0));
    const std::string name = request.name;
    const auto votes = std::ranges::count(voted, name);
    follower.submit({std::move(request), {{data_.back().data(), data_.back().data()}}});
    return std::ranges::count(voted, name) == votes;
  }
  void lock() {
    LockedPlan::Batches batches;
    for (const char* name : {"a", "b"}) {
      batches.push_back({std::make_shared<const Agreement>(Agreement{request_of(name), {}})});
    }
    follower.lock(batches);
    follower.on_agreed("a");
    follower.on_agreed("b");
  }

  void vote(Submission submission) override {
    voted.push_back(submission.request.name);
    submission.work->finish(Result());
  }
  void on_finished(int, Submission& submission, Result result, const Error* error) override {
    if (error != nullptr) return submission.work->fail(*error);
    sums.push_back(submission.request.name + " " + std::to_string(static_cast<int>(sum_of(submission))));
    submission.work->finish(std::move(result));
  }
  void on_plan_batch_done() override { ++batches_done; }
  void on_plan_ended(std::uint64_t) override { ++plans_ended; }

  std::vector<std::string> voted;
  std::vector<std::string> sums;
  int batches_done = 0;
  int plans_ended = 0;

 private:
  static PlanChannel make_channel(std::unique_ptr<Transport> transport) {
    PlanChannel channel{make_loopback_fabric(std::move(transport)), {}};
    channel.planes = channel.fabric->make_planes({});
    return channel;
  }
  static double sum_of(const Submission& submission) {
    return *static_cast<const double*>(submission.addresses[0].out);
  }

  Observers observers_;
  std::deque<std::vector<double>> data_;

 public:
  PlanFollower follower;
};

struct Pair {
  Pair() {
    auto transports = make_loopback(2);
    for (int rank = 0; rank < 2; ++rank) {
      members.push_back(std::make_unique<Member>(rank, std::move(transports[static_cast<std::size_t>(rank)])));
      members.back()->lock();
    }
  }
  Member& operator[](std::size_t rank) { return *members[rank]; }
  // Until nothing moves on either rank.
  void run(bool awaited = false) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (const auto& member : members) moved |= member->follower.progress(awaited);
    }
  }

  std::vector<std::unique_ptr<Member>> members;
};

using Names = std::vector<std::string>;

TEST_CASE("Batches run in order when both ranks have them") {
  Pair pair;
  CHECK_MESSAGE(pair[0].submit(request_of("b")), "b is the plan's");
  pair.run();
  CHECK_MESSAGE(!pair[0].follower.busy(), "b is the second batch, so it waits");
  CHECK_MESSAGE((pair[0].submit(request_of("a")) && pair[1].submit(request_of("a"))), "a is the plan's");
  pair.run();
  CHECK_MESSAGE((pair[0].sums == Names{"a 2"} && pair[1].sums == Names{"a 2"}), "both have summed a");
  CHECK_MESSAGE((pair[0].follower.busy() && !pair[0].follower.moving_data()),
                "rank 0 waits for rank 1 at the barrier of b");
  CHECK_MESSAGE(pair[0].follower.list_running().front().title == "repeated step", "what rank 0 waits for");
  CHECK_MESSAGE(pair[1].submit(request_of("b")), "b comes");
  pair.run();
  CHECK_MESSAGE((pair[1].sums == Names{"a 2", "b 2"}), "then b");
  CHECK_MESSAGE(pair[0].batches_done == 2, "batches");
}

TEST_CASE("A name that is not agreed on again is voted for") {
  Member alone(0, std::move(make_loopback(2)[0]));
  LockedPlan::Batches batches = {{std::make_shared<const Agreement>(Agreement{request_of("a"), {}})}};
  alone.follower.lock(batches);
  CHECK_MESSAGE(!alone.submit(request_of("a")), "its vote may be under way on another rank");
  alone.follower.on_agreed("a");
  CHECK_MESSAGE(alone.submit(request_of("a")), "from now on it is the plan's");
}

TEST_CASE("Another shape ends the plan on both ranks") {
  Pair pair;
  CHECK_MESSAGE(pair[0].submit(request_of("b")), "b is held");
  CHECK_MESSAGE(!pair[0].submit(request_of("a", 5)), "another shape is voted for");
  CHECK_MESSAGE(!pair[0].follower.follows(), "rank 0 has left");
  CHECK_MESSAGE(!pair[0].follower.may_lock(), "but the other rank needs it at the next barrier");
  CHECK_MESSAGE((pair[0].voted == Names{"b", "a"}), "votes of rank 0");
  CHECK_MESSAGE(pair[1].submit(request_of("a")), "rank 1 knows of nothing");
  pair.run();
  CHECK_MESSAGE((pair[1].voted == Names{"a"} && pair[1].sums.empty()), "the batch is called off, and voted for");
  CHECK_MESSAGE((pair[0].follower.may_lock() && pair[1].follower.may_lock()), "both are free for another plan");
  CHECK_MESSAGE((pair[0].plans_ended == 1 && pair[1].plans_ended == 1), "both plans have ended");
}

TEST_CASE("A departure waits for the batch that was begun") {
  Pair pair;
  CHECK_MESSAGE(pair[0].submit(request_of("a")), "a is held");
  pair.run();
  CHECK_MESSAGE(pair[0].submit(request_of("b")), "b is held");
  Request join;
  join.verb = Verb::kJoin;
  join.name = "join";
  CHECK_MESSAGE(pair[0].submit(join), "a join waits until this rank is out of the plan");
  CHECK_MESSAGE((pair[0].follower.follows() && pair[0].voted == Names{"b"}), "what it held is voted for at once");
  CHECK_MESSAGE(pair[1].submit(request_of("a")), "rank 1 comes");
  pair.run();
  CHECK_MESSAGE((pair[0].sums == Names{"a 2"}), "the batch that was begun has run");
  CHECK_MESSAGE((pair[0].voted == Names{"b", "join"}), "then the join is voted for");
  CHECK_MESSAGE(pair[1].follower.follows(), "rank 1 learns of it at its next barrier");
  CHECK_MESSAGE(!pair[1].submit(request_of("b")), "its batch begins at once, and is called off");
  CHECK_MESSAGE((pair[1].voted == Names{"b"} && !pair[1].follower.follows()), "rank 1 has left too");
}

TEST_CASE("A program that waits with an incomplete batch departs") {
  Pair pair;
  CHECK_MESSAGE(pair[0].submit(request_of("b")), "b is held, a is missing");
  pair.run(false);
  CHECK_MESSAGE(pair[0].follower.follows(), "a may still come");
  pair.run(true);
  CHECK_MESSAGE((!pair[0].follower.follows() && pair[0].voted == Names{"b"}),
                "the program will not submit a before it has b");
}

TEST_CASE("Plans hold allreduces only") {
  Member alone(0, std::move(make_loopback(2)[0]));
  Request broadcast = request_of("a");
  broadcast.verb = Verb::kBroadcast;
  LockedPlan::Batches batches = {{std::make_shared<const Agreement>(Agreement{broadcast, {}})}};
  expect_throw<Error>([&] { alone.follower.lock(batches); }, "a plan with a broadcast");
}

}  // namespace
}  // namespace sirtaki::testing
