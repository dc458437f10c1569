// All groups of a rank at once: what keeps them busy, and how they end. This rank is alone in each.
#include "engine/groups.h"

#include <doctest/doctest.h>

#include "expect.h"
#include "fabric/loopback_fabric.h"
#include "transport/loopback.h"

namespace sirtaki::testing {
namespace {

class Owner final : public GroupOwner {
 public:
  void on_finished(int, Submission& submission, Result result, const Error* error) override {
    if (error != nullptr) return submission.work->fail(*error);
    submission.work->finish(std::move(result));
  }
  void on_all_joined(int) override {}
  void on_process_set(const Agreement&, std::optional<Submission>) override {}
  void on_asked(int) override {}
  void on_job_status(const std::string&) override {}
  std::vector<StandingWait> list_waits_for_peers(Clock::time_point) override { return {}; }
  void on_gone(int) override {}
  void log(const std::string&) override {}
};

struct Fixture {
  Fixture() {
    add(0);
    add(1);
  }
  void add(int id) {
    auto fabric = make_loopback_fabric(std::move(make_loopback(1)[0]));
    DataPlanes planes = fabric->make_planes({0});
    GroupOptions options{.id = id, .ranks = {0}, .hosts = {"a"}, .settings = {}};
    groups.add(id, std::make_unique<Group>(std::move(options), std::move(fabric), std::move(planes), PlanChannel{},
                                           owner, observers));
  }
  std::shared_ptr<Work> submit(int id) {
    Request request;
    request.verb = Verb::kBarrier;
    request.name = "b";
    Submission submission(std::move(request), {});
    auto work = submission.work;
    groups.find(id)->plan().submit(std::move(submission));
    return work;
  }
  void run() {
    while (groups.progress(false)) {
    }
  }

  Owner owner;
  Observers observers;
  Groups groups;
};

TEST_CASE("Every group makes progress") {
  Fixture f;
  CHECK(f.groups.find(2) == nullptr);
  const auto first = f.submit(0);
  const auto second = f.submit(1);
  CHECK(f.groups.activity().active);
  check_contains(f.groups.describe_pending(Clock::now()), "2 pending");
  f.run();
  CHECK(first->done());
  CHECK(second->done());
  CHECK(!f.groups.activity().active);
  CHECK(f.groups.activity().longest_sleep == kIdleSleep);
  check_contains(f.groups.describe_pending(Clock::now()), "none pending");
}

TEST_CASE("All groups are left, also one that is added late") {
  Fixture f;
  f.groups.leave();
  f.run();
  CHECK(f.groups.ended());
  f.add(2);
  CHECK(!f.groups.ended());
  f.groups.leave();
  f.run();
  CHECK(f.groups.ended());
}

TEST_CASE("A closed group is no longer found, and counts until it has ended") {
  Fixture f;
  f.groups.close(1);
  f.groups.close(1);  // of a set that this rank is no member of
  CHECK(f.groups.find(1) == nullptr);
  CHECK(f.groups.activity().active);
  f.groups.leave();
  f.run();
  CHECK(f.groups.ended());
}

TEST_CASE("A failure fails what is pending in every group") {
  Fixture f;
  const auto first = f.submit(0);
  const auto second = f.submit(1);
  f.groups.fail_all(Error(ErrorKind::kAborted, "boom"));
  for (const auto& work : {first, second}) check_error(ErrorKind::kAborted, "boom", [&] { work->result(); });
}

}  // namespace
}  // namespace sirtaki::testing
