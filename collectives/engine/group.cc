#include "engine/group.h"

#include "agreement/verdict_check.h"
#include "fusion/fusion.h"

namespace sirtaki {
namespace {

// A rank that is late in one process set may wait in another one. Of two stalls, the stall of all ranks must be
// reported first.
constexpr double kPrecedenceSeconds = 2;

Settings watch_settings(const GroupOptions& options) {
  Settings settings = options.settings;
  if (options.id != 0 && settings.stall_abort_seconds > 0) settings.stall_abort_seconds += kPrecedenceSeconds;
  return settings;
}

}  // namespace

Group::Group(GroupOptions options, std::unique_ptr<Fabric> fabric, DataPlanes planes, PlanChannel plan_channel,
             GroupOwner& owner, const Observers& observers)
    : options_(std::move(options)),
      fabric_(std::move(fabric)),
      control_(transport(), options_.ranks, options_.messages_before),
      owner_(owner),
      observers_(observers),
      executor_(options_.id, transport().rank(), transport().size(), std::move(planes), owner, observers),
      plan_(options_.id, transport().rank(), transport().size(), std::move(plan_channel), *this, owner, observers),
      progress_watch_(transport().rank(), options_.ranks, options_.hosts, watch_settings(options_)) {
  if (transport().rank() == 0) coordinator_.emplace(options_.ranks, options_.hosts, watch_settings(options_));
}

void Group::vote(Submission submission) {
  Vote vote = cache_.vote_for(submission.request);
  vote.epoch = submission.epoch;
  observers_.announce(&Observer::on_voted, options_.id, submission.request, vote.slot != kNoCacheSlot);
  announcement_.votes.push_back(std::move(vote));
  in_flight_.add(std::move(submission));
}

void Group::on_plan_batch_done() {
  if (coordinator_) coordinator_->on_plan_batch_done();
}

void Group::on_plan_ended(std::uint64_t steps) {
  if (coordinator_) coordinator_->on_plan_ended(steps);
}

void Group::leave() {
  if (leaving_ == Leaving::kNo) leaving_ = Leaving::kRequested;
  plan_.depart();
}

void Group::set_fusion_threshold(std::int64_t bytes) {
  if (coordinator_ && coordinator_->set_fusion_threshold(bytes)) plan_.depart();
}

void Group::list_pending(std::vector<PendingCall>& pending) const {
  const auto add = [&pending](const Submission& submission, std::string_view state) {
    const Request& request = submission.request;
    pending.push_back({request.title(), request.verb, request.site, submission.since, state});
  };
  in_flight_.for_each([&](const Submission& submission) { add(submission, "waits for other ranks"); });
  plan_.for_each(add);
  executor_.for_each([&](const Submission& submission, bool running) {
    add(submission, running ? "under way" : "waits for its turn");
  });
}

std::string Group::list_missing(Clock::time_point now) const {
  return coordinator_ ? coordinator_->list_missing(now) : "";
}

bool Group::progress(bool awaited) {
  bool moved = send_announcement();
  moved |= take_in_messages();
  const bool data = executor_.progress();
  const bool planned = plan_.progress(awaited);
  if (data || planned) progress_watch_.on_data_moved();
  if (progress_watch_.has_reported()) report_standing(Clock::now());
  moved |= data || planned;
  if (coordinator_) moved |= coordinate();
  return moved;
}

bool Group::active() const {
  return !in_flight_.empty() || executor_.busy() || plan_.active() || announcement_.has_content() ||
         (leaving() && !all_left()) || (coordinator_ && coordinator_->has_pending());
}

bool Group::send_announcement() {
  // Sent after all votes of this rank. Each voted request ends, with a result or an error, once the other ranks vote
  // for it or leave.
  if (leaving_ == Leaving::kRequested && !in_flight_.has_joins() && !plan_.follows()) {
    announcement_.leaving = true;
    leaving_ = Leaving::kAnnounced;
  }
  if (!announcement_.has_content()) return false;
  const std::uint64_t seen = announcement_.seen;
  if (coordinator_) {
    coordinator_->receive(0, std::move(announcement_), Clock::now());
  } else {
    control_.send(0, encode(announcement_));
    observers_.announce(&Observer::on_messages_sent, options_.id, 1);
  }
  announcement_ = Announcement();
  announcement_.seen = seen;
  return true;
}

bool Group::take_in_messages() {
  bool moved = false;
  while (!postponed_.empty()) {
    Verdict verdict = std::move(postponed_.front());
    postponed_.pop_front();
    if (!act_on(std::move(verdict))) break;
    moved = true;
  }
  Message message;
  while (control_.receive(message)) {
    moved = true;
    if (coordinator_) {
      coordinator_->receive(message.from, decode_announcement(message.bytes), Clock::now());
      continue;
    }
    progress_watch_.on_verdict();
    Verdict verdict = decode_verdict(message.bytes);
    check_verdict(verdict, transport().size());
    if (postponed_.empty() || verdict.failure) {
      act_on(std::move(verdict));
    } else {
      postponed_.push_back(std::move(verdict));
    }
  }
  return moved;
}

bool Group::coordinate() {
  if (coordinator_->has_to_watch()) {
    for (const std::string& line : coordinator_->watch(Clock::now())) owner_.log(line);
  }
  // While a plan verdict is postponed, make no new decisions. Every rank postpones alike. A failing job is the
  // exception.
  if (!postponed_.empty() && !coordinator_->fails()) return false;
  Verdict verdict = coordinator_->decide(executor_.busy(), plan_.may_lock());
  if (!verdict.has_content()) return false;
  if (!verdict.batches.empty()) {
    const auto now = Clock::now();
    for (const ItemList& batch : verdict.batches) verdict.arrivals.push_back(arrival_of(batch, now));
  }
  if (transport().size() > 1) {
    const Bytes bytes = encode(verdict);
    for (int rank = 1; rank < transport().size(); ++rank) control_.send(rank, bytes);
    observers_.announce(&Observer::on_messages_sent, options_.id, transport().size() - 1);
  }
  act_on(std::move(verdict));
  return true;
}

// False if the verdict must wait for the end of an older plan. Then it is the first postponed verdict.
bool Group::act_on(Verdict verdict) {
  const bool plans = !verdict.plan.empty() && !verdict.failure;
  if (plans) plan_.depart();
  if (plans && (plan_.follows() || plan_.busy())) {
    postponed_.push_front(std::move(verdict));
    return false;
  }
  announcement_.seen = verdict.number;
  for (std::size_t i = 0; i < verdict.batches.size(); ++i) start(verdict.batches[i], verdict.arrivals[i]);
  if (plans) lock_plan(verdict.plan);
  for (const CacheSlot slot : verdict.forgotten) cache_.forget(slot);
  for (const Refusal& refusal : verdict.refusals) refuse(refusal);
  for (const std::int64_t rank : verdict.asked) {
    if (rank == transport().rank()) owner_.on_asked(options_.id);
  }
  for (const std::int64_t rank : verdict.gone) owner_.on_gone(global(static_cast<int>(rank)));
  if (!verdict.job_status.empty()) owner_.on_job_status(verdict.job_status);
  if (verdict.last_joined >= 0) finish_joins(options_.ranks[static_cast<std::size_t>(verdict.last_joined)]);
  if (verdict.all_left) leaving_ = Leaving::kAllLeft;
  if (verdict.failure) throw JobFailure(*verdict.failure, options_.id == 0);
  return true;
}

void Group::start(ItemList& items, const BatchArrival& arrival) {
  Batch batch;
  for (Item& item : items) batch.push_back(to_batch_item(item));
  const Verb verb = batch.front().agreement->request.verb;
  if (verb == Verb::kAddProcessSet || verb == Verb::kRemoveProcessSet) {
    owner_.on_process_set(*batch.front().agreement, std::move(batch.front().submission));
    return;
  }
  executor_.add(std::move(batch), Arrival{global(arrival.last), arrival.spread, Clock::now() - arrival.ago});
}

BatchItem Group::to_batch_item(Item& item) {
  BatchItem result;
  result.contributors = item.contributors;
  result.sequence = item.sequence;
  auto own = in_flight_.take(item.agreement ? item.agreement->request.name : cache_.at(item.slot)->request.name,
                             item.sequence);
  if (item.agreement) {
    // Share the object, so that later comparisons of equal requests are fast.
    TensorSpecs& agreed = item.agreement->request.tensors;
    if (own && own->request.tensors == agreed) agreed = own->request.tensors;
    result.agreement = std::make_shared<const Agreement>(std::move(*item.agreement));
  } else {
    result.agreement = cache_.at(item.slot);
  }
  if (item.sequence == 0) plan_.on_agreed(result.agreement->request.name);
  if (own) result.submission.emplace(std::move(*own));
  check_own_part(result);
  if (item.agreement && item.slot != kNoCacheSlot) {
    cache_.remember(item.slot, result.agreement, result.submission ? &result.submission->request : nullptr);
  }
  Arrival arrival = item.arrival;
  arrival.last = global(arrival.last);
  observers_.announce(&Observer::on_agreed, AgreedEvent{options_.id, result.agreement->request, arrival});
  return result;
}

int Group::global(int member) const { return member < 0 ? -1 : options_.ranks[static_cast<std::size_t>(member)]; }

// Only after join() may a rank take part in a request that it has not made. Its own request must match the agreed one.
void Group::check_own_part(const BatchItem& item) const {
  const Request& request = item.agreement->request;
  const bool joins = request.verb <= Verb::kBarrier && request.verb != Verb::kReducescatter;
  const bool about_sets = request.verb == Verb::kAddProcessSet || request.verb == Verb::kRemoveProcessSet;
  const bool fits = item.submission ? item.submission->request.verb == request.verb &&
                                          item.submission->request.tensors.size() == request.tensors.size()
                                    : about_sets || (joins && in_flight_.has_joins());
  if (fits) return;
  throw Error(ErrorKind::kAborted, "the ranks agreed on '" + request.title() + "', which this rank has not asked for " +
                                       (item.submission ? "so" : "at all") + "; please report this as a bug");
}

void Group::lock_plan(const std::vector<std::vector<CacheSlot>>& slots) {
  LockedPlan::Batches batches;
  for (const std::vector<CacheSlot>& slots_of_batch : slots) {
    auto& batch = batches.emplace_back();
    for (const CacheSlot slot : slots_of_batch) batch.push_back(cache_.at(slot));
  }
  plan_.lock(batches);
  // This rank had announced that before it received the plan.
  if (leaving() || in_flight_.has_joins()) plan_.depart();
}

void Group::refuse(const Refusal& refusal) {
  const Error error(ErrorKind::kPrecondition, refusal.message);
  if (refusal.name.empty()) {
    for (Submission& join : in_flight_.take_joins()) owner_.on_finished(options_.id, join, Result(), &error);
  } else if (std::optional<Submission> submission = in_flight_.take(refusal.name, refusal.sequence)) {
    owner_.on_finished(options_.id, *submission, Result(), &error);
  }
}

void Group::finish_joins(int last) {
  const std::vector<Submission> joins = in_flight_.take_joins();
  owner_.on_all_joined(options_.id);
  for (const Submission& submission : joins) {
    Result result;
    result.value = last;
    submission.work->finish(std::move(result));
  }
}

void Group::look(Clock::time_point now) {
  report_standing(now);
  if (coordinator_) return;
  const bool asks = waits() || progress_watch_.has_reported();
  if (progress_watch_.must_ask_coordinator(asks, now)) announcement_.wants_heartbeat = true;
  if (const std::string line = progress_watch_.warning(now); !line.empty()) owner_.log(line);
}

bool Group::waits() const {
  return !in_flight_.empty() || executor_.busy() || plan_.busy() || (leaving() && !all_left());
}

bool Group::waits_for(int rank) const { return waits() && std::ranges::count(options_.ranks, rank) > 0; }

// The coordinator sees only votes. So inform it of requests that make no progress in a plan or on the planes.
void Group::report_standing(Clock::time_point now) {
  std::vector<StandingWait> waits = plan_.list_held(now, ProgressWatch::kPatience);
  if (options_.id == 0) {
    const std::vector<StandingWait> peers = owner_.list_waits_for_peers(now);
    waits.insert(waits.end(), peers.begin(), peers.end());
  }
  if (progress_watch_.data_stands_still(now)) {
    for (const auto& running : {executor_.running(), plan_.list_running()}) {
      waits.insert(waits.end(), running.begin(), running.end());
    }
  }
  if (auto changed = progress_watch_.changed(std::move(waits))) announcement_.standing = std::move(*changed);
}

void Group::fail_all(const Error& error) {
  executor_.abort(error);
  plan_.fail_all(error);
  for (Submission& submission : in_flight_.take_all()) owner_.on_finished(options_.id, submission, Result(), &error);
}

void Group::close() {
  leave();
  options_.id = -1;  // a new set may get the number at once
}

}  // namespace sirtaki
