#include "targets.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "agreement/messages.h"
#include "coordinator/coordinator.h"
#include "engine/group.h"
#include "engine/handshake.h"
#include "fabric/loopback_fabric.h"
#include "host/byte_ring.h"
#include "host/setup_exchange.h"
#include "plane/gpu/gpu_capabilities.h"
#include "transport/control_channel.h"
#include "transport/loopback.h"

namespace sirtaki::fuzz {
namespace {

constexpr int kRanks = 3;
const std::vector<int> kNames = {0, 1, 2};

Request request_of(Verb verb, const std::string& name) {
  Request request;
  request.verb = verb;
  request.name = name;
  request.tensors = {{DType::kFloat32, kHostDevice, {6, 2}}};
  request.site = "train.py:1";
  if (verb == Verb::kAlltoall) request.splits = {1, 2, 3};
  if (verb == Verb::kBroadcast) request.root = 1;
  if (verb == Verb::kBarrier || verb == Verb::kJoin) request.tensors = TensorSpecs();
  return request;
}

constexpr std::array kVerbs = {Verb::kAllreduce, Verb::kAllgather,     Verb::kBroadcast,
                               Verb::kAlltoall,  Verb::kReducescatter, Verb::kBarrier};

std::string name_of_call(Verb verb) { return "a " + std::string(name_of(verb)); }

// ---- what decodes is written again as it came to be understood ----

std::vector<Bytes> announcements() {
  Announcement votes;
  votes.seen = 3;
  for (const Verb verb : kVerbs) votes.votes.push_back({.request = request_of(verb, name_of_call(verb))});
  votes.votes.push_back({.slot = 0, .sequence = 2, .request = {}});
  votes.standing = std::vector{StandingWait{"a", "b", 1}};
  Announcement last;
  last.leaving = last.wants_heartbeat = last.wants_job_status = true;
  last.report = RankStatus{"waits for 'x'", "a stack"};
  Announcement failed;
  failed.failure =
      FailureCause{.rank = 1, .host = "b", .text = "boom", .time = 1.5, .site = "train.py:2", .witness = 1};
  Announcement join;
  join.votes = {{.request = request_of(Verb::kJoin, "join")}};
  return {encode(votes), encode(last), encode(failed), encode(join)};
}

std::vector<Bytes> verdicts() {
  Verdict runs;
  runs.number = 1;
  std::int64_t slot = 0;
  for (const Verb verb : kVerbs) {
    Agreement agreement{request_of(verb, name_of_call(verb)), {}};
    if (verb == Verb::kAllgather) agreement.sizes = {6, 5, 4};
    if (verb == Verb::kAlltoall) agreement.sizes = {1, 2, 3, 1, 2, 3, 1, 2, 3};
    runs.batches.push_back({{.slot = slot++, .sequence = 0, .contributors = kRanks, .agreement = agreement}});
    runs.arrivals.push_back({.last = 1, .spread = std::chrono::milliseconds(5), .ago = std::chrono::microseconds(3)});
  }
  runs.refusals = {{"refused", 0, "why"}};
  Verdict plans;
  plans.number = 2;
  plans.plan = {{0}};
  plans.forgotten = {3};
  plans.asked = {1};
  Verdict ends;
  ends.last_joined = 2;
  ends.all_left = ends.alive = true;
  return {encode(runs), encode(plans), encode(ends)};
}

template <auto decode>
void read_and_write(std::span<const std::byte> bytes) {
  const auto message = decode(bytes);
  const Bytes once = encode(message);
  if (encode(decode(once)) != once) std::abort();
}

// ---- control lines and the handshake ----

void read_line(std::span<const std::byte> bytes) {
  const auto transports = make_loopback(2);
  transports[1]->send(0, {bytes.begin(), bytes.end()});
  ControlChannel line(*transports[0], {0, 1});
  Message message;
  line.receive(message);
}

std::vector<Bytes> sealed() {
  std::vector<Bytes> result;
  for (const Bytes& body : announcements()) {
    const auto transports = make_loopback(2);
    ControlChannel(*transports[1], {0, 1}).send(0, body);
    Message message;
    transports[0]->receive(message);
    result.push_back(std::move(message.bytes));
  }
  return result;
}

Introduction introduction(int rank) { return {"program", "settings", "host" + std::to_string(rank), "id"}; }

void write(Writer& writer, const Introduction& each) {
  for (const std::string* text : {&each.program, &each.settings, &each.host_name, &each.host_id}) writer.text(*text);
}

std::vector<Bytes> introductions(bool answer) {
  Writer writer;
  if (answer) writer.text("");
  for (int rank = 0; rank < (answer ? 2 : 1); ++rank) write(writer, introduction(rank));
  return {writer.take()};
}

// Rank `rank` of two shakes hands with one that says this.
template <int rank>
void shake(std::span<const std::byte> bytes) {
  const auto transports = make_loopback(2);
  ControlChannel(*transports[1 - rank], {0, 1}).send(rank, {bytes.begin(), bytes.end()});
  Settings settings;
  settings.start_timeout_seconds = 0;
  shake_hands(*transports[rank], introduction(rank), settings);
}

// ---- what acts on messages ----

// Rank 0 hears the same from both others, and votes as they do in the seeds.
void coordinate(std::span<const std::byte> bytes) {
  Coordinator coordinator(kNames, {});
  const auto now = Clock::now();
  Announcement before;
  before.votes = {{.request = request_of(Verb::kAllreduce, "before")}};
  for (const int rank : kNames) coordinator.receive(rank, before, now);
  coordinator.decide(false, 1 << 20, true);  // from now on by slot 0
  Announcement own;
  for (const Verb verb : kVerbs) own.votes.push_back({.request = request_of(verb, name_of_call(verb))});
  coordinator.receive(0, own, now);
  for (const int rank : {1, 2}) coordinator.receive(rank, decode_announcement(bytes), now);
  const Bytes verdict = encode(coordinator.decide(false, 1 << 20, true));
  if (encode(decode_verdict(verdict)) != verdict) std::abort();
  coordinator.waiting();
}

// Nothing moves, since only what leads there is looked at.
class IdlePlane final : public DataPlane {
 public:
  std::string_view name() const override { return "idle"; }
  bool supports(const PlaneQuery&) const override { return true; }
  Task allreduce(Reduction, std::span<const Segment>) override { co_return; }
  Task broadcast(int, std::size_t, std::span<const Segment>) override { co_return; }
  Task allgather(std::size_t, const Spread&) override { co_return; }
  Task reducescatter(Reduction, const Spread&) override { co_return; }
  Task alltoall(std::size_t, const Exchange&) override { co_return; }
};

class Owner final : public GroupOwner {
 public:
  void on_finished(int, Submission&, Result, const Error*) override {}
  void on_all_joined(int) override {}
  void on_process_set(const Agreement&, std::optional<Submission>) override {}
  void on_asked(int) override {}
  void on_job_status(const std::string&) override {}
  std::vector<StandingWait> list_waits_for_peers(Clock::time_point) override { return {}; }
  void on_gone(int) override {}
  void log(const std::string&) override {}
};

DataPlanes idle_planes() {
  DataPlanes planes;
  planes.push_back(std::make_unique<IdlePlane>());
  return planes;
}

// Rank 1, which has asked for what the seeds' verdicts answer, is told this.
void follow(std::span<const std::byte> bytes) {
  auto transports = make_loopback(kRanks);
  ControlChannel line(*transports[0], kNames);
  Owner owner;
  const Observers observers;
  PlanChannel channel{nullptr, idle_planes()};
  Group group({.ranks = kNames, .hosts = {"a", "a", "a"}, .settings = {}},
              make_loopback_fabric(std::move(transports[1])), idle_planes(), std::move(channel), owner, observers);
  std::vector<float> memory(100);
  for (const Verb verb : kVerbs) {
    const Request request = request_of(verb, name_of_call(verb));
    std::vector<Address> addresses(request.tensors.size(), {memory.data(), memory.data()});
    group.plan().submit({request, addresses});
  }
  try {
    line.send(1, {bytes.begin(), bytes.end()});
    for (int i = 0; i < 20; ++i) group.progress(false);
  } catch (const Error& error) {
    group.fail_all(error);
    throw;
  }
  group.fail_all(Error(ErrorKind::kAborted, "over"));
}

// ---- what is read from fixed rooms ----

// Transfers of data that come from these bytes.
class Scripted final : public Transport {
 public:
  Scripted(int rank, std::span<const std::byte> bytes) : rank_(rank), left_(bytes) {}
  std::string_view name() const override { return "scripted"; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  void send(int, Bytes) override {}
  bool receive(Message&) override { return false; }
  bool flushed() override { return true; }
  PendingPtr send_data(int, int, std::span<const std::byte>) override { return nullptr; }
  PendingPtr receive_data(int, int, std::span<std::byte> into) override {
    const std::size_t count = std::min(into.size(), left_.size());
    std::copy_n(left_.begin(), count, into.begin());
    left_ = left_.subspan(count);
    return nullptr;
  }
  std::unique_ptr<Transport> split(const std::vector<int>&) override { return nullptr; }
  void abort_job(int) override {}

 private:
  int rank_;
  std::span<const std::byte> left_;
};

const GpuCard kCard{"gpu", "2.27", "", "", true};

template <int rank>
void compare_cards(std::span<const std::byte> bytes) {
  Scripted transport(rank, bytes);
  GpuCapabilities agreement;
  const std::string wish;  // the task refers to them
  const NcclUniqueId id{};
  Task task = exchange_cards(transport, kCard, wish, id, agreement);
  while (!task.advance()) {
  }
}

std::vector<Bytes> cards(bool answer) {
  Writer writer;
  if (!answer) {
    for (const std::string* text : {&kCard.identity, &kCard.nccl, &kCard.lacks_nccl, &kCard.lacks_kernels}) {
      writer.text(*text);
    }
    writer.number(1);
  } else {
    for (int i = 0; i < 3; ++i) writer.number(1);
    writer.text("why not");
    writer.text("");
    writer.text(std::string(128, 'i'));
  }
  return {writer.take()};
}

void hear_text(std::span<const std::byte> bytes) {
  Scripted transport(1, bytes);
  receive_text(transport, 0);
}

// A ring as somebody may have left it: two positions, then some of its bytes.
void use_ring(std::span<const std::byte> bytes) {
  alignas(128) static std::array<std::byte, ByteRing::kMemory> memory;
  memory.fill(std::byte{0});
  if (bytes.size() >= 16) {
    std::memcpy(memory.data(), bytes.data(), 8);
    std::memcpy(memory.data() + 128, bytes.data() + 8, 8);
  }
  ByteRing ring(memory.data());
  std::array<std::byte, 3000> part{};
  ring.pop(part);
  ring.push(part);
  ring.pop(part);
}

std::vector<Bytes> rings() {
  std::vector<Bytes> result;
  for (const std::uint64_t written : {0ULL, 100ULL, 16384ULL, 1ULL << 40}) {
    Bytes bytes(16);
    const std::uint64_t read = written > 50 ? written - 50 : 0;
    std::memcpy(bytes.data(), &written, 8);
    std::memcpy(bytes.data() + 8, &read, 8);
    result.push_back(std::move(bytes));
  }
  return result;
}

}  // namespace

std::vector<Target> all_targets() {
  std::vector<Target> all = {{"announcement", announcements(), read_and_write<decode_announcement>},
                             {"verdict", verdicts(), read_and_write<decode_verdict>},
                             {"control line", sealed(), read_line},
                             {"handshake of rank 0", introductions(false), shake<0>},
                             {"handshake of rank 1", introductions(true), shake<1>},
                             {"coordinator", announcements(), coordinate},
                             {"member", verdicts(), follow},
                             {"gpu cards", cards(false), compare_cards<0>},
                             {"gpu agreement", cards(true), compare_cards<1>},
                             {"name of a segment", {Bytes(512, std::byte{'a'})}, hear_text},
                             {"ring", rings(), use_ring}};
  for (Target& target : socket_targets()) all.push_back(std::move(target));
  return all;
}

}  // namespace sirtaki::fuzz
