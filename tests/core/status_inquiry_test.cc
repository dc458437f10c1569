// How questions about this rank's status are answered, without an engine: this thread plays the engine's thread.
#include "engine/status_inquiry.h"

#include <future>

#include "expect.h"

namespace sirtaki::testing {
namespace {

struct Fixture {
  // Runs what was posted, until the answer is there.
  std::string serve(std::future<std::string> answer) {
    while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      queue.take();
      if (inquiry.pending()) inquiry.look();
      std::this_thread::yield();
    }
    return answer.get();
  }
  std::future<std::string> ask() {
    return std::async(std::launch::async, [this] { return inquiry.report(); });
  }

  const Topology topology = make_topology(1, {"a", "b"}, {"a", "b"});
  Doorbell doorbell;
  Observers observers;
  SubmitQueue queue{1, 2, doorbell, observers};
  Groups groups;
  StatusInquiry inquiry{topology, queue, groups, observers, [] { return "taken by force"; }};
};

TEST_CASE("A report holds the stacks of the interpreter") {
  Fixture f;
  Request request;
  request.name = "x";
  f.observers.announce(&Observer::on_completed, 0, request, static_cast<const Error*>(nullptr));
  std::thread interpreter([&] {
    while (f.inquiry.wait_for_question()) f.inquiry.answer("my stack");
  });
  const std::string report = f.serve(f.ask());
  for (const char* part :
       {"rank 1 on host b", "collectives finished: 1, the last allreduce 'x'", "none pending", "my stack"}) {
    check_contains(report, part);
  }
  CHECK(!f.inquiry.pending());
  f.inquiry.end();
  interpreter.join();
}

TEST_CASE("Stacks are taken by force if the interpreter does not answer") {
  Fixture f;
  check_contains(f.serve(f.ask()), "taken by force");
}

TEST_CASE("Nobody waits after the end") {
  Fixture f;
  auto answer = f.ask();
  f.inquiry.close("the job has failed: boom");
  CHECK(answer.get() == "the job has failed: boom");
  f.inquiry.end();
  CHECK(f.inquiry.report() == "the job has failed: boom");
  CHECK(f.inquiry.job_status() == "the job has failed: boom");
  CHECK(!f.inquiry.wait_for_question());
}

}  // namespace
}  // namespace sirtaki::testing
