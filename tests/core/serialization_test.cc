// The wire format: what was written is read, and nothing else is accepted.
#include "base/serialization.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "agreement/messages.h"
#include "expect.h"

namespace sirtaki::testing {
namespace {

Request sample_request() {
  Request request;
  request.name = std::string("na\0me \xc3\xa4 \"quoted\"\n", 18);
  request.sequence = 1ULL << 60;
  request.verb = Verb::kAlltoall;
  request.op = ReduceOp::kProduct;
  request.prescale = -0.1;
  request.postscale = std::numeric_limits<double>::denorm_min();
  request.root = 7;
  request.tensors = {{DType::kBfloat16, 3, {1LL << 40, 0, 5}}, {DType::kBool, kHostDevice, {}}};
  request.splits = {0, 1, 1LL << 50};
  request.site = "train.py:1";
  return request;
}

FailureCause sample_cause() { return {FailureKind::kPassedLimit, 3, "a host", "two\nlines", 1.5e9, "train.py:41", 1}; }

TEST_CASE("Numbers survive encoding") {
  const std::uint64_t unsigned_values[] = {0, 1, 127, 128, 1ULL << 32, std::numeric_limits<std::uint64_t>::max()};
  const std::int64_t signed_values[] = {
      0, -1, 63, -64, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  Writer writer;
  for (const auto value : unsigned_values) writer.number(value);
  for (const auto value : signed_values) writer.integer(value);
  writer.real(0.1);
  const Bytes bytes = writer.take();
  Reader reader(bytes);
  for (const auto value : unsigned_values) CHECK(reader.number() == value);
  for (const auto value : signed_values) CHECK(reader.integer() == value);
  CHECK(reader.real() == 0.1);
  reader.finish();
}

TEST_CASE("Announcements survive encoding") {
  Announcement announcement;
  announcement.seen = 12;
  announcement.leaving = true;
  announcement.failure = sample_cause();
  announcement.report = RankStatus{"", "stack"};
  announcement.wants_job_status = true;
  announcement.votes = {{.slot = 5, .sequence = 9, .request = {}}, {.request = sample_request()}};
  const Announcement read = decode_announcement(encode(announcement));
  CHECK(read.seen == 12U);
  CHECK_MESSAGE(read.leaving, "flags");
  CHECK(read.failure == sample_cause());
  CHECK_MESSAGE(read.wants_job_status, "flags");
  CHECK(read.report == RankStatus{"", "stack"});
  REQUIRE(read.votes.size() == 2U);
  CHECK(read.votes[0].slot == 5);
  CHECK(read.votes[0].sequence == 9U);
  CHECK(read.votes[1].request == sample_request());
}

Verdict sample_verdict() {
  Verdict verdict;
  verdict.number = 3;
  verdict.batches = {
      {{.slot = 1, .sequence = 2, .contributors = 3, .agreement = std::nullopt}},
      {{.slot = kNoCacheSlot, .sequence = 0, .contributors = 2, .agreement = Agreement{sample_request(), {4, 5}}}}};
  verdict.refusals = {{"a", 1, "because"}};
  verdict.plan = {{7, 1}, {3}};
  verdict.forgotten = {8, 9};
  verdict.asked = {2};
  verdict.last_joined = 4;
  verdict.all_left = true;
  verdict.job_status = "all well";
  verdict.failure = sample_cause();
  return verdict;
}

TEST_CASE("Verdicts survive encoding") {
  const Verdict read = decode_verdict(encode(sample_verdict()));
  CHECK(read.number == 3U);
  REQUIRE(read.batches.size() == 2U);
  CHECK(read.batches[0][0].contributors == 3);
  CHECK_MESSAGE(!read.batches[0][0].agreement, "known slot carries nothing");
  CHECK(read.batches[1][0].agreement->request == sample_request());
  CHECK(read.batches[1][0].agreement->sizes == std::vector<std::int64_t>{4, 5});
  CHECK(read.refusals[0].message == "because");
  CHECK(read.plan == std::vector<std::vector<CacheSlot>>{{7, 1}, {3}});
  CHECK(read.forgotten == std::vector<std::int64_t>{8, 9});
  CHECK(read.asked == std::vector<std::int64_t>{2});
  CHECK(read.last_joined == 4);
  CHECK_MESSAGE(read.all_left, "end");
  CHECK(read.failure == sample_cause());
  CHECK(read.job_status == "all well");
}

TEST_CASE("A repeated vote is small") {
  Announcement announcement;
  announcement.seen = 1000;
  for (int slot = 0; slot < 161; ++slot) announcement.votes.push_back({.slot = slot, .sequence = 0, .request = {}});
  CHECK_MESSAGE(encode(announcement).size() < 600, "161 repeated votes take less than 600 bytes");
}

// Every truncation and a great many corruptions either decode to something or throw Error; they never crash or loop.
TEST_CASE("Damaged bytes are refused or harmless") {
  const Bytes good = encode(sample_verdict());
  for (std::size_t length = 0; length < good.size(); ++length) {
    expect_throw<Error>([&] { decode_verdict(std::span(good).first(length)); }, "truncated verdict");
  }
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Bytes bad = good;
    for (int i = 0; i <= round % 3; ++i) bad[random() % bad.size()] = static_cast<std::byte>(random());
    try {
      decode_verdict(bad);
      decode_announcement(bad);
    } catch (const Error& error) {
      check_contains(error.what(), "malformed");
    }
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  expect_throw<Error>([&] { decode_verdict(longer); }, "trailing byte");
}

}  // namespace
}  // namespace sirtaki::testing
