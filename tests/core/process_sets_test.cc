// The table of process sets: numbers that all ranks give alike, and requests that name global ranks.
#include "queue/process_sets.h"

#include "base/error.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

ProcessSets sets_of_rank(int rank) {
  ProcessSets sets(rank, 4);
  sets.add(0, {0, 1, 2, 3});
  sets.add(1, {0, 2});
  return sets;
}

Request request_of(Verb verb, std::vector<std::int64_t> splits = {}) {
  Request request;
  request.verb = verb;
  request.name = "x";
  request.splits = std::move(splits);
  return request;
}

TEST_CASE("Ids are the smallest that are unused") {
  ProcessSets sets = sets_of_rank(3);
  CHECK(sets.unused_id() == 2);
  sets.add(2, {1, 3});
  sets.remove(1);
  CHECK(sets.unused_id() == 1);
  CHECK(sets.id_of({1, 3}) == 2);
  CHECK(!sets.id_of({0, 2}));
  CHECK(sets.find(1) == nullptr);
  CHECK(sets.ranks().size() == 2);
}

TEST_CASE("Only members use a set") {
  ProcessSets sets = sets_of_rank(3);
  CHECK(sets.member_set(0, request_of(Verb::kBarrier)).rank == 3);
  const auto stranger = expect_throw<Error>([&] { sets.member_set(1, request_of(Verb::kBarrier)); }, "no member");
  CHECK(std::string(stranger.what()) == "barrier 'x': rank 3 is not in process set 1, which consists of ranks 0, 2");
  const auto missing = expect_throw<Error>([&] { sets.member_set(7, request_of(Verb::kBarrier)); }, "no such set");
  CHECK(std::string(missing.what()) == "barrier 'x': there is no process set 7");
}

TEST_CASE("Roots become ranks of the group") {
  ProcessSets sets = sets_of_rank(2);
  Request request = request_of(Verb::kBroadcast);
  request.root = 2;
  sets.resolve_ranks(*sets.find(1), request);
  CHECK(request.root == 1);
  request.root = 3;
  const auto error = expect_throw<Error>([&] { sets.resolve_ranks(*sets.find(1), request); }, "no member");
  check_contains(error.what(), "root rank 3 is not among ranks 0, 2");
}

TEST_CASE("Changes of the table are checked") {
  ProcessSets sets = sets_of_rank(0);
  const auto refused = [&](Request request, const std::string& part) {
    const auto error = expect_throw<Error>([&] { sets.resolve_ranks(*sets.find(0), request); }, part);
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
    check_contains(error.what(), part);
  };
  refused(request_of(Verb::kAddProcessSet), "no ranks were given");
  refused(request_of(Verb::kAddProcessSet, {1, 4}), "rank 4 does not exist; there are 4 ranks");
  refused(request_of(Verb::kAddProcessSet, {1, 1}), "rank 1 is given twice");
  refused(request_of(Verb::kAddProcessSet, {2, 0}), "ranks 0, 2 already form process set 1");
  refused(request_of(Verb::kRemoveProcessSet, {0}), "cannot be removed");
  refused(request_of(Verb::kRemoveProcessSet, {5}), "cannot be removed");
  Request join = request_of(Verb::kJoin);
  const auto error = expect_throw<Error>([&] { sets.resolve_ranks(*sets.find(1), join); }, "join of some ranks");
  check_contains(error.what(), "works on the global process set only");
  Request added = request_of(Verb::kAddProcessSet, {3, 1});
  sets.resolve_ranks(*sets.find(0), added);
  CHECK(added.splits == std::vector<std::int64_t>{1, 3});
}

}  // namespace
}  // namespace sirtaki::testing
