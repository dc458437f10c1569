#include "send_receive/mailbox.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/serialization.h"
#include "queue/request_check.h"

namespace sirtaki {
namespace {

std::size_t bytes_of(const Request& request) {
  const TensorSpec& tensor = request.tensors[0];
  return static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
}

std::span<const std::byte> readable(const Submission& submission) {
  return {static_cast<const std::byte*>(submission.addresses[0].in), bytes_of(submission.request)};
}

std::span<std::byte> writable(const Submission& submission) {
  return {static_cast<std::byte*>(submission.addresses[0].out), bytes_of(submission.request)};
}

[[noreturn]] void fail(int from, const std::string& what) {
  throw Error(ErrorKind::kAborted, "a frame from rank " + std::to_string(from) + " is not valid: " + what +
                                       "; memory was overwritten, or the network has failed");
}

std::string removed(int process_set) {
  return "process set " + std::to_string(process_set) + " was removed before this send and its receive had met";
}

Bytes encode_offer(int process_set, std::uint64_t removals, const Submission& submission, bool whole) {
  const Request& request = submission.request;
  Writer writer;
  writer.integer(process_set);
  writer.number(removals);
  writer.integer(request.tag);
  writer.number(static_cast<std::uint64_t>(request.tensors[0].dtype));
  writer.integers(request.tensors[0].shape);
  writer.text(request.site);
  writer.number(whole ? 1 : 0);
  Bytes bytes = writer.take();
  if (whole) {
    const auto content = readable(submission);
    bytes.insert(bytes.end(), content.begin(), content.end());
  }
  return bytes;
}

std::string describe(const Request& request) {
  const TensorSpec& tensor = request.tensors[0];
  std::string text = std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape) + " (" +
                     std::to_string(bytes_of(request)) + " bytes)";
  return request.site.empty() ? text : text + " at " + request.site;
}

}  // namespace

Mailbox::Mailbox(int rank, int size, std::unique_ptr<Wire> wire, SubmissionOwner& owner)
    : rank_(rank),
      wire_(std::move(wire)),
      owner_(owner),
      bodies_(static_cast<std::size_t>(size)),
      gone_(static_cast<std::size_t>(size)) {}

void Mailbox::submit(int process_set, Submission submission) {
  Own own{present(process_set), std::move(submission)};
  moved_ = true;
  if (own.submission.request.verb == Verb::kSend) {
    send(std::move(own));
  } else {
    receive(std::move(own));
  }
}

void Mailbox::send(Own own) {
  const Request& request = own.submission.request;
  const int to = request.root;
  if (gone_[static_cast<std::size_t>(to)]) {
    const Error error = gone(request);
    return finish(std::move(own), &error);
  }
  const std::uint64_t number = ++next_number_;
  const bool whole = bytes_of(request) <= kEagerBytes;
  post(to, {FrameKind::kOffer, number}, encode_offer(own.set.first, own.set.second, own.submission, whole));
  sends_.emplace(Number{to, number}, std::move(own));
}

void Mailbox::receive(Own own) {
  const Request& request = own.submission.request;
  const int from = request.root;
  const Key key{own.set, from, request.tag};
  if (const auto waiting = offers_.find(key); waiting != offers_.end()) {
    Offer offer = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) offers_.erase(waiting);
    return match(from, std::move(offer), std::move(own));
  }
  if (gone_[static_cast<std::size_t>(from)]) {
    const Error error = gone(request);
    return finish(std::move(own), &error);
  }
  if (from != rank_) wire_->expect(from);
  receives_[key].push_back(std::move(own));
}

void Mailbox::match(int from, Offer offer, Own own) {
  const std::string text = misfit(from, offer.request, own.submission.request);
  if (!text.empty()) {
    refuse(from, offer, text);
    const Error error(ErrorKind::kPrecondition, text);
    return finish(std::move(own), &error);
  }
  post(from, {offer.whole ? FrameKind::kTaken : FrameKind::kReady, offer.number});
  if (!offer.whole) {
    arriving_.emplace(Number{from, offer.number}, std::move(own));
    return;
  }
  if (!offer.content.empty()) {
    std::memcpy(writable(own.submission).data(), offer.content.data(), offer.content.size());
  }
  finish(std::move(own));
}

Mailbox::Set Mailbox::present(int process_set) const {
  const auto found = removals_.find(process_set);
  return {process_set, found == removals_.end() ? 0 : found->second};
}

void Mailbox::refuse(int from, const Offer& offer, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  post(from, {FrameKind::kRefused, offer.number}, Bytes(bytes.begin(), bytes.end()));
}

std::string Mailbox::misfit(int from, const Request& sent, const Request& received) const {
  const bool same_dtype = sent.tensors[0].dtype == received.tensors[0].dtype;
  if (same_dtype && bytes_of(sent) == bytes_of(received)) return "";
  return "rank " + std::to_string(from) + " sends to rank " + std::to_string(rank_) + " with tag " +
         std::to_string(sent.tag) + " " + describe(sent) + ", but rank " + std::to_string(rank_) + " receives " +
         describe(received) + "; dtype and number of elements must be equal";
}

bool Mailbox::move() {
  bool moved = wire_->progress(*this);
  while (!local_.empty()) {
    const LocalFrame frame = std::move(local_.front());
    local_.pop_front();
    const auto body = frame.own.empty() ? frame.borrowed : std::span<const std::byte>(frame.own);
    const auto memory = place(rank_, frame.head);
    if (!body.empty()) std::memcpy(memory.data(), body.data(), body.size());
    on_frame(rank_, frame.head);
    on_sent(rank_, frame.head);
    moved = true;
  }
  moved_ |= moved;
  return moved;
}

void Mailbox::post(int to, FrameHead head, Bytes own, std::span<const std::byte> borrowed) {
  head.bytes = own.empty() ? borrowed.size() : own.size();
  if (to == rank_) {
    local_.push_back({head, std::move(own), borrowed});
    return;
  }
  wire_->send(to, head, std::move(own), borrowed);
  if (head.kind == FrameKind::kOffer || head.kind == FrameKind::kReady) wire_->expect(to);
}

std::span<std::byte> Mailbox::place(int from, const FrameHead& head) {
  if (static_cast<std::uint64_t>(head.kind) >= kFrameKindCount) {
    fail(from, "its kind is " + std::to_string(static_cast<std::uint64_t>(head.kind)));
  }
  if (head.kind != FrameKind::kData) {
    if (head.bytes > kLongestMessage) fail(from, "it has " + std::to_string(head.bytes) + " bytes");
    Bytes& body = bodies_[static_cast<std::size_t>(from)];
    body.resize(head.bytes);
    return body;
  }
  const auto found = arriving_.find({from, head.number});
  if (found == arriving_.end()) fail(from, "no receive waits for its data");
  const auto memory = writable(found->second.submission);
  if (memory.size() != head.bytes) fail(from, std::to_string(head.bytes) + " bytes of data came");
  return memory;
}

void Mailbox::on_frame(int from, const FrameHead& head) {
  if (head.kind == FrameKind::kOffer) return on_offer(from, decode_offer(from, head.number));
  if (head.kind != FrameKind::kData) return on_answer(from, head);
  auto received = arriving_.extract({from, head.number});
  finish(std::move(received.mapped()));
}

Mailbox::Offer Mailbox::decode_offer(int from, std::uint64_t number) const {
  Reader reader(bodies_[static_cast<std::size_t>(from)]);
  Offer offer{.number = number,
              .set = {static_cast<int>(reader.integer()), reader.number()},
              .request = {},
              .whole = false,
              .content = {}};
  Request& request = offer.request;
  request.verb = Verb::kSend;
  request.tag = static_cast<int>(reader.integer());
  const auto dtype = static_cast<DType>(reader.below(kDTypeCount));
  request.tensors = {{dtype, kHostDevice, reader.integers()}};
  request.site = reader.text();
  offer.whole = reader.below(2) == 1;
  const auto content = reader.rest();
  offer.content.assign(content.begin(), content.end());
  try {
    check_request(request, static_cast<int>(bodies_.size()));
  } catch (const Error& error) {
    fail(from, error.what());
  }
  if (content.size() != (offer.whole ? bytes_of(request) : 0)) fail(from, "an offer of a wrong size");
  return offer;
}

void Mailbox::on_offer(int from, Offer offer) {
  const int process_set = offer.set.first;
  if (offer.set < present(process_set)) return refuse(from, offer, removed(process_set));
  const Key key{offer.set, from, offer.request.tag};
  const auto waiting = receives_.find(key);
  if (waiting == receives_.end()) {
    offers_[key].push_back(std::move(offer));
    return;
  }
  Own own = std::move(waiting->second.front());
  waiting->second.pop_front();
  if (waiting->second.empty()) receives_.erase(waiting);
  match(from, std::move(offer), std::move(own));
}

void Mailbox::on_answer(int from, const FrameHead& head) {
  const auto found = sends_.find({from, head.number});
  if (found == sends_.end()) {
    if (gone_[static_cast<std::size_t>(from)]) return;  // the send has failed already
    fail(from, "no send waits for its answer");
  }
  Own& own = found->second;
  if (own.sends_data) fail(from, "a second answer came");
  if (head.kind == FrameKind::kReady) {
    own.sends_data = true;
    ++sending_;
    return post(from, {FrameKind::kData, head.number}, {}, readable(own.submission));
  }
  auto answered = sends_.extract(found);
  if (head.kind == FrameKind::kTaken) return finish(std::move(answered.mapped()));
  const Bytes& body = bodies_[static_cast<std::size_t>(from)];
  const Error error(ErrorKind::kPrecondition, std::string(reinterpret_cast<const char*>(body.data()), body.size()));
  finish(std::move(answered.mapped()), &error);
}

void Mailbox::on_sent(int to, const FrameHead& head) {
  if (head.kind != FrameKind::kData) return;
  --sending_;
  finish(std::move(sends_.extract({to, head.number}).mapped()));
}

void Mailbox::finish(Own own, const Error* error) {
  Result result;
  result.buffers.resize(1);
  result.shapes = {own.submission.request.tensors[0].shape};
  owner_.on_finished(own.set.first, own.submission, std::move(result), error);
}

Error Mailbox::gone(const Request& request) const {
  const std::string rank = "rank " + std::to_string(request.root);
  return {ErrorKind::kPrecondition, "'" + request.title() + "' cannot complete: " + rank +
                                        " has left (shut down, or the program ended there)" +
                                        (request.site.empty() ? "" : "; called at " + request.site)};
}

void Mailbox::on_removed(int process_set) {
  const Set set = present(process_set);
  ++removals_[process_set];
  const auto is_gone = [&](const auto& queue) { return std::get<0>(queue.first) == set; };
  std::vector<Own> ended;
  for (auto& queue : receives_) {
    if (!is_gone(queue)) continue;
    for (Own& own : queue.second) ended.push_back(std::move(own));
  }
  std::erase_if(receives_, is_gone);
  for (const auto& queue : offers_) {
    if (!is_gone(queue)) continue;
    for (const Offer& offer : queue.second) refuse(std::get<1>(queue.first), offer, removed(process_set));
  }
  std::erase_if(offers_, is_gone);
  const Error error(ErrorKind::kPrecondition, removed(process_set));
  for (Own& own : ended) finish(std::move(own), &error);
}

void Mailbox::on_left(int rank) {
  gone_[static_cast<std::size_t>(rank)] = true;
  std::vector<Own> ended;
  for (auto send = sends_.begin(); send != sends_.end();) {
    const auto next = std::next(send);
    if (send->first.first == rank && !send->second.sends_data)
      ended.push_back(std::move(sends_.extract(send).mapped()));
    send = next;
  }
  for (auto queue = receives_.begin(); queue != receives_.end();) {
    const auto next = std::next(queue);
    if (std::get<1>(queue->first) == rank) {
      for (Own& own : queue->second) ended.push_back(std::move(own));
      receives_.erase(queue);
    }
    queue = next;
  }
  for (Own& own : ended) {
    const Error error = gone(own.submission.request);
    finish(std::move(own), &error);
  }
}

template <class Call>
void Mailbox::for_each(Call call) const {
  for (const auto& [number, own] : sends_) call(own, own.sends_data);
  for (const auto& [key, queue] : receives_) {
    for (const Own& own : queue) call(own, false);
  }
  for (const auto& [number, own] : arriving_) call(own, true);
}

bool Mailbox::waits_for(int rank) const {
  bool found = false;
  for_each([&](const Own& own, bool) { found |= own.submission.request.root == rank; });
  return found;
}

std::vector<StandingWait> Mailbox::list_waits(Clock::time_point now, Clock::duration patience) {
  if (std::exchange(moved_, false)) still_since_ = now;
  std::vector<StandingWait> waits;
  for_each([&](const Own& own, bool matched) {
    const Request& request = own.submission.request;
    if (now - (matched ? still_since_ : own.submission.since) <= patience) return;
    const StandingWait wait{request.title(), request.site, request.root};
    if (std::ranges::find(waits, wait) == waits.end()) waits.push_back(wait);
  });
  return waits;
}

void Mailbox::list_pending(std::vector<PendingCall>& pending) const {
  for_each([&](const Own& own, bool matched) {
    const Request& request = own.submission.request;
    pending.push_back({request.title(), request.verb, request.site, own.submission.since,
                       matched ? "under way" : "waits for the other rank"});
  });
}

void Mailbox::fail_all(const Error& error) {
  std::vector<Own> ended;
  for (auto& [number, own] : std::exchange(sends_, {})) ended.push_back(std::move(own));
  for (auto& [key, queue] : std::exchange(receives_, {})) {
    for (Own& own : queue) ended.push_back(std::move(own));
  }
  for (auto& [number, own] : std::exchange(arriving_, {})) ended.push_back(std::move(own));
  offers_.clear();
  local_.clear();
  for (Own& own : ended) finish(std::move(own), &error);
}

}  // namespace sirtaki
