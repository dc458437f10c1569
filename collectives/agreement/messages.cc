#include "agreement/messages.h"

namespace sirtaki {
namespace {

void write(Writer& writer, const TensorSpec& tensor) {
  writer.number(static_cast<std::uint64_t>(tensor.dtype));
  writer.integer(tensor.device);
  writer.integers(tensor.shape);
}

TensorSpec read_tensor(Reader& reader) {
  TensorSpec tensor;
  tensor.dtype = static_cast<DType>(reader.below(kDTypeCount));
  tensor.device = static_cast<int>(reader.integer());
  tensor.shape = reader.integers();
  return tensor;
}

void write(Writer& writer, const Vote& vote) {
  writer.integer(vote.slot);
  if (vote.slot == kNoCacheSlot) {
    write(writer, vote.request);
  } else {
    writer.number(vote.sequence);
  }
}

Vote read_vote(Reader& reader) {
  Vote vote;
  vote.slot = reader.integer();
  if (vote.slot == kNoCacheSlot) {
    vote.request = read_request(reader);
    vote.sequence = vote.request.sequence;
  } else {
    vote.sequence = reader.number();
  }
  return vote;
}

void write(Writer& writer, const Item& item) {
  writer.integer(item.slot);
  writer.number(item.sequence);
  writer.integer(item.contributors);
  writer.number(item.agreement.has_value() ? 1 : 0);
  if (item.agreement.has_value()) {
    write(writer, item.agreement->request);
    writer.integers(item.agreement->sizes);
  }
}

Item read_item(Reader& reader) {
  Item item;
  item.slot = reader.integer();
  item.sequence = reader.number();
  item.contributors = static_cast<int>(reader.integer());
  if (reader.below(2) == 1) {
    Agreement agreement;
    agreement.request = read_request(reader);
    agreement.sizes = reader.integers();
    item.agreement = std::move(agreement);
  }
  return item;
}

void write(Writer& writer, const std::vector<StandingWait>& waits) {
  writer.number(waits.size());
  for (const StandingWait& wait : waits) {
    writer.text(wait.title);
    writer.text(wait.site);
    writer.integer(wait.peer);
  }
}

std::vector<StandingWait> read_standing(Reader& reader) {
  std::vector<StandingWait> waits(reader.length());
  for (StandingWait& wait : waits) {
    wait.title = reader.text();
    wait.site = reader.text();
    wait.peer = static_cast<int>(reader.integer());
  }
  return waits;
}

void write(Writer& writer, const BatchArrival& arrival) {
  writer.integer(arrival.last);
  writer.integer(arrival.spread.count());
  writer.integer(arrival.ago.count());
}

BatchArrival read_arrival(Reader& reader) {
  BatchArrival arrival;
  arrival.last = static_cast<int>(reader.integer());
  arrival.spread = std::chrono::microseconds(reader.integer());
  arrival.ago = std::chrono::microseconds(reader.integer());
  return arrival;
}

// Rare parts of a message cost one bit each while they are absent.
constexpr std::uint64_t kLeaving = 1;
constexpr std::uint64_t kFailure = 2;
constexpr std::uint64_t kReport = 4;
constexpr std::uint64_t kStanding = 8;
constexpr std::uint64_t kWantsHeartbeat = 16;
constexpr std::uint64_t kWantsJobStatus = 32;
constexpr std::uint64_t kAllLeft = 1;
constexpr std::uint64_t kAlive = 2;
constexpr std::uint64_t kFails = 4;

}  // namespace

void write(Writer& writer, const Request& request) {
  writer.text(request.name);
  writer.number(request.sequence);
  writer.number(static_cast<std::uint64_t>(request.verb));
  writer.number(static_cast<std::uint64_t>(request.op));
  writer.real(request.prescale);
  writer.real(request.postscale);
  writer.integer(request.root);
  writer.number(request.tensors.size());
  for (const TensorSpec& tensor : request.tensors) write(writer, tensor);
  writer.integers(request.splits);
  writer.text(request.site);
}

Request read_request(Reader& reader) {
  Request request;
  request.name = reader.text();
  request.sequence = reader.number();
  request.verb = static_cast<Verb>(reader.below(kVerbCount));
  request.op = static_cast<ReduceOp>(reader.below(kReduceOpCount));
  request.prescale = reader.real();
  request.postscale = reader.real();
  request.root = static_cast<int>(reader.integer());
  std::vector<TensorSpec> tensors(reader.length());
  for (TensorSpec& tensor : tensors) tensor = read_tensor(reader);
  request.tensors = TensorSpecs(std::move(tensors));
  request.splits = reader.integers();
  request.site = reader.text();
  return request;
}

// The rank that was last by the most, and the last vote of all.
BatchArrival arrival_of(const ItemList& batch, Clock::time_point now) {
  Arrival latest;
  Clock::time_point last_vote;
  for (const Item& item : batch) {
    if (latest.last < 0 || item.arrival.spread > latest.spread) latest = item.arrival;
    last_vote = std::max(last_vote, item.arrival.at);
  }
  const auto microseconds = [](auto time) { return std::chrono::duration_cast<std::chrono::microseconds>(time); };
  return {latest.last, microseconds(latest.spread), microseconds(now - last_vote)};
}

Bytes encode(const Announcement& announcement) {
  Writer writer;
  writer.number(announcement.seen);
  writer.number((announcement.leaving ? kLeaving : 0) | (announcement.failure.has_value() ? kFailure : 0) |
                (announcement.report.has_value() ? kReport : 0) | (announcement.standing.has_value() ? kStanding : 0) |
                (announcement.wants_heartbeat ? kWantsHeartbeat : 0) |
                (announcement.wants_job_status ? kWantsJobStatus : 0));
  if (announcement.failure.has_value()) write(writer, *announcement.failure);
  if (announcement.report.has_value()) {
    writer.text(announcement.report->doing);
    writer.text(announcement.report->stacks);
  }
  if (announcement.standing.has_value()) write(writer, *announcement.standing);
  writer.number(announcement.votes.size());
  for (const Vote& vote : announcement.votes) write(writer, vote);
  return writer.take();
}

Announcement decode_announcement(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Announcement announcement;
  announcement.seen = reader.number();
  const std::uint8_t present = reader.below(64);
  announcement.leaving = (present & kLeaving) != 0;
  announcement.wants_heartbeat = (present & kWantsHeartbeat) != 0;
  announcement.wants_job_status = (present & kWantsJobStatus) != 0;
  if ((present & kFailure) != 0) announcement.failure = read_cause(reader);
  if ((present & kReport) != 0) {
    RankStatus& report = announcement.report.emplace();
    report.doing = reader.text();
    report.stacks = reader.text();
  }
  if ((present & kStanding) != 0) announcement.standing = read_standing(reader);
  announcement.votes.resize(reader.length());
  for (Vote& vote : announcement.votes) vote = read_vote(reader);
  reader.finish();
  return announcement;
}

Bytes encode(const Verdict& verdict) {
  Writer writer;
  writer.number(verdict.number);
  writer.integer(verdict.last_joined);
  writer.number((verdict.all_left ? kAllLeft : 0) | (verdict.alive ? kAlive : 0) |
                (verdict.failure.has_value() ? kFails : 0));
  if (verdict.failure.has_value()) write(writer, *verdict.failure);
  writer.text(verdict.job_status);
  writer.integers(verdict.forgotten);
  writer.integers(verdict.asked);
  writer.integers(verdict.gone);
  writer.number(verdict.refusals.size());
  for (const Refusal& refusal : verdict.refusals) {
    writer.text(refusal.name);
    writer.number(refusal.sequence);
    writer.text(refusal.message);
  }
  writer.number(verdict.plan.size());
  for (const std::vector<CacheSlot>& batch : verdict.plan) writer.integers(batch);
  writer.number(verdict.batches.size());
  for (const ItemList& batch : verdict.batches) {
    writer.number(batch.size());
    for (const Item& item : batch) write(writer, item);
  }
  writer.number(verdict.arrivals.size());
  for (const BatchArrival& arrival : verdict.arrivals) write(writer, arrival);
  return writer.take();
}

Verdict decode_verdict(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Verdict verdict;
  verdict.number = reader.number();
  verdict.last_joined = static_cast<int>(reader.integer());
  const std::uint8_t flags = reader.below(8);
  verdict.all_left = (flags & kAllLeft) != 0;
  verdict.alive = (flags & kAlive) != 0;
  if ((flags & kFails) != 0) verdict.failure = read_cause(reader);
  verdict.job_status = reader.text();
  verdict.forgotten = reader.integers();
  verdict.asked = reader.integers();
  verdict.gone = reader.integers();
  verdict.refusals.resize(reader.length());
  for (Refusal& refusal : verdict.refusals) {
    refusal.name = reader.text();
    refusal.sequence = reader.number();
    refusal.message = reader.text();
  }
  verdict.plan.resize(reader.length());
  for (std::vector<CacheSlot>& batch : verdict.plan) batch = reader.integers();
  verdict.batches.resize(reader.length());
  for (ItemList& batch : verdict.batches) {
    batch.resize(reader.length());
    for (Item& item : batch) item = read_item(reader);
  }
  verdict.arrivals.resize(reader.length());
  for (BatchArrival& arrival : verdict.arrivals) arrival = read_arrival(reader);
  reader.finish();
  return verdict;
}

}  // namespace sirtaki
