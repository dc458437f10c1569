#include "queue/call_names.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "base/error.h"

namespace sirtaki::testing {
namespace {

Request request_of(const std::string& name, std::uint64_t sequence = 0) {
  Request request;
  request.name = name;
  request.sequence = sequence;
  return request;
}

std::shared_ptr<Work> take(CallNames& names, Request request, const std::shared_ptr<Work>& work) {
  return names.take(request, work);
}

TEST_CASE("A name is taken until the program knows the result") {
  CallNames names;
  const auto first = std::make_shared<Work>();
  const auto second = std::make_shared<Work>();
  CHECK(take(names, request_of("a"), first) == nullptr);
  CHECK(take(names, request_of("b"), std::make_shared<Work>()) == nullptr);
  CHECK_THROWS_AS(take(names, request_of("a"), second), Error);
  first->finish({});
  CHECK_THROWS_AS(take(names, request_of("a"), second), Error);
  first->result();
  CHECK(take(names, request_of("a"), second) == nullptr);
}

TEST_CASE("A failure is a result as well") {
  CallNames names;
  const auto first = std::make_shared<Work>();
  take(names, request_of("a"), first);
  first->fail(Error(ErrorKind::kPrecondition, "the ranks differ"));
  CHECK_THROWS_AS(first->result(), Error);
  CHECK(take(names, request_of("a"), std::make_shared<Work>()) == nullptr);
}

TEST_CASE("A call waits for a dropped one of its name, and for a nameless one of its number") {
  for (const std::uint64_t sequence : {0, 1}) {
    CallNames names;
    const auto first = std::make_shared<Work>();
    auto second = std::make_shared<Work>();
    take(names, request_of("a", sequence), first);
    if (sequence == 0) first->note_known();
    CHECK(take(names, request_of("a", sequence), second) == first);
    second.reset();
    CHECK(take(names, request_of("a", sequence), std::make_shared<Work>()) == nullptr);
  }
}

TEST_CASE("Names that are taken outlive any number of others") {
  CallNames names;
  const auto kept = std::make_shared<Work>();
  take(names, request_of("kept"), kept);
  for (int i = 0; i < 1000; ++i) take(names, request_of("other " + std::to_string(i)), std::make_shared<Work>());
  CHECK_THROWS_AS(take(names, request_of("kept"), std::make_shared<Work>()), Error);
}

}  // namespace
}  // namespace sirtaki::testing
