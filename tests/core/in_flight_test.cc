// The submissions for which a rank has voted.
#include "queue/in_flight.h"

#include "check.h"

namespace sirtaki::testing {
namespace {

Submission submission_of(const std::string& name, std::uint64_t sequence = 0, Verb verb = Verb::kAllreduce) {
  Request request;
  request.name = name;
  request.sequence = sequence;
  request.verb = verb;
  return {std::move(request), {}, std::make_shared<Work>(), nullptr};
}

std::string list(const InFlight& in_flight) {
  std::string titles;
  in_flight.for_each([&](const Submission& submission) { titles += submission.request.title() + " "; });
  return titles;
}

void a_call_is_found_by_name_and_number() {
  InFlight in_flight;
  check(in_flight.empty(), "nothing yet");
  in_flight.add(submission_of("x", 1));
  in_flight.add(submission_of("x", 2));
  check(!in_flight.take("x", 3), "was not asked for");
  check(in_flight.take("x", 2)->request.sequence == 2, "the second");
  check(!in_flight.take("x", 2), "once only");
  check(!in_flight.empty(), "the first remains");
}

void joins_are_kept_apart() {
  InFlight in_flight;
  for (int thread = 0; thread < 2; ++thread) in_flight.add(submission_of("join", 0, Verb::kJoin));
  in_flight.add(submission_of("x"));
  check(in_flight.has_joins() && !in_flight.take("join", 0), "a join is not found by its name");
  check_contains(list(in_flight), "x");
  check_equal(in_flight.take_joins().size(), std::size_t{2}, "joins");
  check(!in_flight.has_joins() && !in_flight.empty(), "x remains");
  in_flight.add(submission_of("join", 0, Verb::kJoin));
  check_equal(in_flight.take_all().size(), std::size_t{2}, "all");
  check(in_flight.empty(), "nothing remains");
}

}  // namespace
}  // namespace sirtaki::testing

int main() {
  using namespace sirtaki::testing;
  a_call_is_found_by_name_and_number();
  joins_are_kept_apart();
}
