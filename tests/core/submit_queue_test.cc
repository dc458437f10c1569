// The queue between the program's threads and the engine's: names, checks, calls, and what is seen without a lock.
#include "queue/submit_queue.h"

#include <algorithm>

#include "expect.h"

namespace sirtaki::testing {
namespace {

Submission barrier(const std::string& name) {
  Request request;
  request.verb = Verb::kBarrier;
  request.name = name;
  return {std::move(request), {}};
}

// Rank 1 of 3 in a job whose only process set is the global one.
struct Fixture {
  Fixture() : queue(1, 3, doorbell, observers) {
    queue.with_sets([](ProcessSets& sets) { sets.add(0, {0, 1, 2}); });
  }
  std::shared_ptr<Work> put(const std::string& name, WakeUp wake_up = WakeUp::kNow) {
    return queue.put(0, barrier(name), wake_up);
  }
  // All that can be taken now.
  std::vector<Submission> take() {
    std::vector<Submission> taken;
    queue.take();
    while (SubmitQueue::Entry* const entry = queue.next()) taken.push_back(std::move(entry->submission));
    return taken;
  }

  Doorbell doorbell;
  Observers observers;
  SubmitQueue queue;
};

TEST_CASE("A submission is seen whether or not it wakes") {
  for (const bool has_core : {true, false}) {
    for (const WakeUp wake_up : {WakeUp::kNow, WakeUp::kSoon, WakeUp::kByCaller, WakeUp::kIfCoreFree}) {
      Fixture f;
      f.queue.set_has_core(has_core);
      CHECK(!f.queue.changed());
      const std::uint32_t rings = f.doorbell.rings();
      f.put("a", wake_up);
      const bool always = wake_up == WakeUp::kNow || wake_up == WakeUp::kSoon;
      const bool wakes = always || (wake_up == WakeUp::kIfCoreFree && has_core);
      CHECK(f.doorbell.rings() - rings == (wakes ? 1U : 0U));
      CHECK(f.queue.changed());
      const std::vector<Submission> taken = f.take();
      CHECK(taken.size() == 1);
      CHECK(taken[0].request.name == "a");
      CHECK(!f.queue.changed());
      CHECK(f.take().empty());
    }
  }
}

TEST_CASE("An engine without a core of its own may collect calls until one is urgent") {
  Fixture f;
  f.put("own core", WakeUp::kSoon);
  CHECK(!f.queue.may_gather());
  f.take();
  f.queue.set_has_core(false);
  f.put("first", WakeUp::kSoon);
  f.put("second", WakeUp::kSoon);
  CHECK(f.queue.may_gather());
  f.take();
  CHECK_MESSAGE(!f.queue.may_gather(), "all were taken");
  f.put("third", WakeUp::kSoon);
  f.put("urgent", WakeUp::kNow);
  CHECK(!f.queue.may_gather());
  f.put("fourth", WakeUp::kSoon);
  CHECK_MESSAGE(!f.queue.may_gather(), "an urgent one waits before it");
  f.take();
  f.put("fifth", WakeUp::kSoon);
  f.queue.post([] {});
  CHECK(!f.queue.may_gather());
}

TEST_CASE("A name is taken until the program has learned of the result") {
  Fixture f;
  const std::shared_ptr<Work> work = f.put("a");
  const auto refused = expect_throw<Error>([&] { f.put("a"); }, "the name is taken");
  check_contains(refused.what(), "'a' is used again before this rank's program has received");
  work->finish({});
  expect_throw<Error>([&] { f.put("a"); }, "the result is there, but the program does not know");
  work->result();
  CHECK(f.take().size() == 1);
  f.put("a");
  CHECK(f.take().size() == 1);
}

TEST_CASE("A call waits for an earlier one of its name that the program has dropped") {
  Fixture f;
  const std::shared_ptr<Work> dropped = f.put("a");
  dropped->note_known();
  const std::shared_ptr<Work> later = f.put("a");
  const std::vector<Submission> taken = f.take();
  CHECK(taken[0].work == dropped);
  CHECK_MESSAGE(f.queue.changed(), "the engine takes again later");
  CHECK(f.take().empty());
  dropped->finish({});
  CHECK(f.take()[0].work == later);
  CHECK(!f.queue.changed());
}

TEST_CASE("Nameless calls are numbered for each verb") {
  Fixture f;
  f.put("");
  f.put("");
  {
    const std::vector<Submission> taken = f.take();
    CHECK(taken[0].request.title() == "barrier.noname.1");
    CHECK(taken[1].request.sequence == 2);
  }
  f.queue.with_sets([](ProcessSets& sets) { sets.find(0)->names.restart_numbers(); });
  f.put("");
  CHECK(f.take()[0].request.sequence == 1);
}

TEST_CASE("Calls run before the submissions are taken") {
  Fixture f;
  f.put("a");
  int calls = 0;
  f.queue.post([&] {
    ++calls;
    f.queue.post([&] { ++calls; });
  });
  CHECK(f.take().size() == 1);
  CHECK(calls == 2);
}

// The engine's thread throws what another thread has posted; the submissions are still there to be failed.
TEST_CASE("A call that throws loses no submission") {
  Fixture f;
  const auto work = f.put("a");
  f.queue.post([] { throw Error(ErrorKind::kAborted, "boom"); });
  expect_throw<Error>([&] { f.queue.take(); }, "boom");
  CHECK(f.queue.changed());
  f.queue.post([] { throw Error(ErrorKind::kAborted, "not run"); });
  const std::vector<SubmitQueue::Entry> left = f.queue.take_all();
  CHECK(left.size() == 1);
  CHECK(!work->done());
}

// The step that fails in the middle has taken some submissions and not others; an earlier call delays one of them.
TEST_CASE("A failure gets every submission that was not taken") {
  Fixture f;
  const std::shared_ptr<Work> dropped = f.put("a");
  dropped->note_known();
  std::vector<std::shared_ptr<Work>> rest{f.put("a"), f.put("b")};
  f.queue.take();
  f.queue.next();
  rest.push_back(f.put("c"));
  std::vector<std::shared_ptr<Work>> failed;
  for (const SubmitQueue::Entry& entry : f.queue.take_all()) failed.push_back(entry.submission.work);
  CHECK(std::ranges::is_permutation(failed, rest));
  CHECK(f.queue.take_all().empty());
}

TEST_CASE("A closed queue refuses with the most serious reason") {
  Fixture f;
  const auto reason = [&] { return std::string(expect_throw<Error>([&] { f.put("a"); }, "closed").what()); };
  f.queue.close(Error(ErrorKind::kPrecondition, "shut down"));
  CHECK(reason() == "shut down");
  f.queue.close(Error(ErrorKind::kAborted, "failed"));
  CHECK(reason() == "failed");
  f.queue.close(Error(ErrorKind::kPrecondition, "shut down"));
  CHECK(reason() == "failed");
  f.queue.close(Error(ErrorKind::kAborted, "agreed"));
  CHECK(reason() == "agreed");
}

TEST_CASE("Epochs separate what depends on a result") {
  Fixture f;
  f.put("a");
  f.put("b");
  f.queue.begin_epoch();
  f.put("c");
  const std::vector<Submission> taken = f.take();
  CHECK(taken[0].epoch == taken[1].epoch);
  CHECK(taken[1].epoch != taken[2].epoch);
}

TEST_CASE("A rank alone copies at once") {
  Doorbell doorbell;
  const Observers observers;
  SubmitQueue queue(0, 1, doorbell, observers);
  queue.with_sets([](ProcessSets& sets) { sets.add(0, {0}); });
  Request request;
  request.name = "x";
  request.tensors = {{DType::kFloat32, kHostDevice, {2}}};
  const float in[2] = {1, 2};
  float out[2] = {};
  CHECK(queue.put(0, {std::move(request), {{in, out}}})->done());
  CHECK(out[1] == 2);
  CHECK(!queue.changed());
}

}  // namespace
}  // namespace sirtaki::testing
