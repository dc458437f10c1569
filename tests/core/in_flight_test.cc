// The submissions for which a rank has voted.
#include "queue/in_flight.h"

#include <doctest/doctest.h>

#include "expect.h"

namespace sirtaki::testing {
namespace {

Submission submission_of(const std::string& name, std::uint64_t sequence = 0, Verb verb = Verb::kAllreduce) {
  Request request;
  request.name = name;
  request.sequence = sequence;
  request.verb = verb;
  return {std::move(request), {}};
}

std::string list(const InFlight& in_flight) {
  std::string titles;
  in_flight.for_each([&](const Submission& submission) { titles += submission.request.title() + " "; });
  return titles;
}

TEST_CASE("A call is found by name and number") {
  InFlight in_flight;
  CHECK_MESSAGE(in_flight.empty(), "nothing yet");
  in_flight.add(submission_of("x", 1));
  in_flight.add(submission_of("x", 2));
  CHECK_MESSAGE(!in_flight.take("x", 3), "was not asked for");
  CHECK_MESSAGE(in_flight.take("x", 2)->request.sequence == 2, "the second");
  CHECK_MESSAGE(!in_flight.take("x", 2), "once only");
  CHECK_MESSAGE(!in_flight.empty(), "the first remains");
}

TEST_CASE("Joins are kept apart") {
  InFlight in_flight;
  for (int thread = 0; thread < 2; ++thread) in_flight.add(submission_of("join", 0, Verb::kJoin));
  in_flight.add(submission_of("x"));
  CHECK_MESSAGE((in_flight.has_joins() && !in_flight.take("join", 0)), "a join is not found by its name");
  check_contains(list(in_flight), "x");
  CHECK_MESSAGE(in_flight.take_joins().size() == std::size_t{2}, "joins");
  CHECK_MESSAGE((!in_flight.has_joins() && !in_flight.empty()), "x remains");
  in_flight.add(submission_of("join", 0, Verb::kJoin));
  CHECK_MESSAGE(in_flight.take_all().size() == std::size_t{2}, "all");
  CHECK_MESSAGE(in_flight.empty(), "nothing remains");
}

}  // namespace
}  // namespace sirtaki::testing
