#include "group.h"

#include "planner.h"
#include "verdict_check.h"

namespace sirtaki {
Group::Group(GroupOptions options, std::unique_ptr<Transport> transport, DataPlanes planes, PlanLane lane,
             GroupOwner& owner, Statistics& statistics)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      line_(*transport_, options_.ranks, options_.messages_before),
      owner_(owner),
      statistics_(statistics),
      executor_(transport_->rank(), transport_->size(), std::move(planes),
                [this](Submission& submission, Result result, const Error* error) {
                  owner_.on_finished(options_.id, submission, std::move(result), error);
                }),
      lane_transport_(std::move(lane.transport)),
      plans_(!lane.planes.empty()),
      lane_(
          transport_->rank(), transport_->size(), std::move(lane.planes),
          [this](Submission& submission, Result result, const Error* error) {
            owner_.on_finished(options_.id, submission, std::move(result), error);
          },
          [this](const Meeting& meeting, Batch& batch) { on_met(meeting, batch); }),
      fusion_threshold_(options_.settings.fusion_threshold) {
  if (transport_->rank() == 0) {
    coordinator_.emplace(options_.ranks, options_.settings);
    watch_.emplace(make_watch(options_));
    picture_.emplace(options_.hosts);
  }
}

void Group::submit(Submission submission) {
  if (plan_) {
    const LockedPlan::Answer answer = plan_->offer(submission, Clock::now());
    if (answer == LockedPlan::Answer::kHeld) return;
    const bool joins = submission.request.verb == Verb::kJoin;
    if (answer == LockedPlan::Answer::kDiffers || joins) depart();
    // Whoever has joined counts as having voted for everything, so that what it has yet to vote for comes first.
    if (plan_ && joins) {
      late_joins_.push_back(std::move(submission));
      return;
    }
  }
  vote(std::move(submission));
}

void Group::vote(Submission submission) {
  Vote vote = cache_.vote_for(submission.request);
  vote.epoch = submission.epoch;
  ++(vote.slot == kNoSlot ? statistics_.cache_misses : statistics_.cache_hits);
  announcement_.votes.push_back(std::move(vote));
  if (submission.request.verb == Verb::kJoin) {
    joins_.push_back(std::move(submission));
    return;
  }
  Key key{submission.request.name, submission.request.sequence};
  in_flight_.emplace(std::move(key), std::move(submission));
}

void Group::leave() {
  leaving_ = true;
  depart();
}

void Group::announce_failure(const Cause& cause) { announcement_.failure = cause; }

void Group::answer(const RankReport& report) { announcement_.report = report; }

void Group::ask_for_picture() { announcement_.wants_picture = true; }

void Group::list_pending(std::vector<PendingCall>& pending) const {
  const auto add = [&pending](const Submission& submission, std::string_view state) {
    const Request& request = submission.request;
    pending.push_back({request.title(), request.verb, request.site, submission.since, state});
  };
  for (const auto& [key, submission] : in_flight_) add(submission, "waits for other ranks");
  for (const Submission& submission : joins_) add(submission, "waits for other ranks");
  for (const Submission& submission : late_joins_) add(submission, "waits for its turn");
  if (plan_) plan_->for_each_held([&](const Submission& held) { add(held, "waits for the rest of its batch"); });
  for (const Executor* executor : {&executor_, &lane_}) {
    executor->for_each([&](const Submission& submission, bool running) {
      add(submission, running ? "under way" : "waits for its turn");
    });
  }
}

std::string Group::list_missing(Clock::time_point now) const {
  return coordinator_ ? watch_->list_missing(coordinator_->waiting(), now) : "";
}

bool Group::progress(bool awaited) {
  bool moved = send_announcement();
  moved |= take_in_messages();
  moved |= follow_plan(awaited);
  bool data = executor_.progress();
  data |= lane_.progress();
  if (data) ++moves_;
  if (!reported_.empty()) report_standing(Clock::now());
  moved |= data;
  if (coordinator_) moved |= coordinate();
  return moved;
}

bool Group::active() const {
  return !in_flight_.empty() || !joins_.empty() || moving_data() || (plan_ && (plan_->holds_anything() || meeting())) ||
         announcement_.says_something() || (leaving_ && !all_left_) || (coordinator_ && coordinator_->has_pending());
}

bool Group::send_announcement() {
  // After all that it has asked for, which ends, one way or the other, once the other ranks ask too or have left.
  if (leaving_ && !told_leaving_ && joins_.empty() && !plan_) {
    announcement_.leaving = told_leaving_ = true;
  }
  if (!announcement_.says_something()) return false;
  const std::uint64_t seen = announcement_.seen;
  if (coordinator_) {
    coordinator_->hear(0, std::move(announcement_), Clock::now());
  } else {
    line_.send(0, encode(announcement_));
    ++statistics_.messages;
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
  while (line_.receive(message)) {
    moved = true;
    if (coordinator_) {
      coordinator_->hear(message.from, decode_announcement(message.bytes), Clock::now());
      continue;
    }
    ++heard_;
    Verdict verdict = decode_verdict(message.bytes);
    check_verdict(verdict, transport_->size());
    if (postponed_.empty() || verdict.failure) {
      act_on(std::move(verdict));
    } else {
      postponed_.push_back(std::move(verdict));
    }
  }
  return moved;
}

bool Group::coordinate() {
  if (coordinator_->has_pending() || watch_->has_warned()) watch();
  // What follows it waits here as on all ranks, but for the job's end.
  if (!postponed_.empty() && !coordinator_->fails()) return false;
  Verdict verdict = coordinator_->decide(executor_.busy(), fusion_threshold_, plans_ && !meeting());
  if (!verdict.says_something()) return false;
  if (transport_->size() > 1) {
    const Bytes bytes = encode(verdict);
    for (int rank = 1; rank < transport_->size(); ++rank) line_.send(rank, bytes);
    statistics_.messages += static_cast<std::uint64_t>(transport_->size() - 1);
  }
  act_on(std::move(verdict));
  return true;
}

// False if the verdict has to wait: it is the first of the postponed ones then.
bool Group::act_on(Verdict verdict) {
  const bool plans = !verdict.plan.empty() && !verdict.failure;
  if (plans) depart();  // from the one before, if there is one
  if (plans && (plan_ || meeting())) {
    postponed_.push_front(std::move(verdict));
    return false;
  }
  announcement_.seen = verdict.number;
  for (ItemList& items : verdict.batches) start(items);
  if (plans) lock_plan(verdict.plan);
  for (const Slot slot : verdict.forgotten) cache_.forget(slot);
  for (const Refusal& refusal : verdict.refusals) refuse(refusal);
  for (const std::int64_t rank : verdict.asked) {
    if (rank == transport_->rank()) owner_.on_asked(options_.id);
  }
  if (!verdict.picture.empty()) owner_.on_picture(verdict.picture);
  if (verdict.last_joined >= 0) finish_joins(options_.ranks[static_cast<std::size_t>(verdict.last_joined)]);
  if (verdict.all_left) all_left_ = true;
  if (verdict.failure) throw JobFailure(*verdict.failure, options_.id == 0);
  return true;
}

void Group::start(ItemList& items) {
  Batch batch;
  for (Item& item : items) batch.push_back(to_batch_item(item));
  const Verb verb = batch.front().agreement->request.verb;
  if (verb == Verb::kAddProcessSet || verb == Verb::kRemoveProcessSet) {
    owner_.on_process_set(*batch.front().agreement, std::move(batch.front().submission));
    return;
  }
  ++statistics_.batches;
  executor_.add(std::move(batch));
}

BatchItem Group::to_batch_item(Item& item) {
  BatchItem result;
  result.contributors = item.contributors;
  result.sequence = item.sequence;
  auto own = take({item.agreement ? item.agreement->request.name : cache_.at(item.slot)->request.name, item.sequence});
  if (item.agreement) {
    // One and the same, so that later requests are compared in no time.
    TensorSpecs& agreed = item.agreement->request.tensors;
    if (own && own->request.tensors == agreed) agreed = own->request.tensors;
    result.agreement = std::make_shared<const Agreement>(std::move(*item.agreement));
  } else {
    result.agreement = cache_.at(item.slot);
  }
  if (plan_ && item.sequence == 0) plan_->negotiated(result.agreement->request.name, Clock::now());
  if (own) result.submission.emplace(std::move(*own));
  check_own_part(result);
  if (item.agreement && item.slot != kNoSlot) {
    cache_.remember(item.slot, result.agreement, result.submission ? &result.submission->request : nullptr);
  }
  count(result.agreement->request);
  return result;
}

// Ranks that have not asked for something take part in it only after join(), and whoever has asked did so alike.
void Group::check_own_part(const BatchItem& item) const {
  const Request& request = item.agreement->request;
  const bool joins = request.verb == Verb::kAllreduce || request.verb == Verb::kBarrier;
  const bool about_sets = request.verb == Verb::kAddProcessSet || request.verb == Verb::kRemoveProcessSet;
  const bool fits = item.submission ? item.submission->request.verb == request.verb &&
                                          item.submission->request.tensors.size() == request.tensors.size()
                                    : about_sets || (joins && !joins_.empty());
  if (fits) return;
  throw Error(ErrorKind::kAborted, "the ranks agreed on '" + request.title() + "', which this rank has not asked for " +
                                       (item.submission ? "so" : "at all") + "; please report this as a bug");
}

void Group::count(const Request& request) {
  statistics_.tensors += request.tensors.size();
  statistics_.bytes += static_cast<std::uint64_t>(bytes_of(request));
}

std::optional<Submission> Group::take(const Key& key) {
  auto node = in_flight_.extract(key);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

void Group::refuse(const Refusal& refusal) {
  if (refusal.name.empty()) {
    const Error error(ErrorKind::kPrecondition, refusal.message);
    for (Submission& join : std::exchange(joins_, {})) owner_.on_finished(options_.id, join, Result(), &error);
    return;
  }
  std::optional<Submission> submission = take({refusal.name, refusal.sequence});
  if (!submission) return;
  const Error error(ErrorKind::kPrecondition, refusal.message);
  owner_.on_finished(options_.id, *submission, Result(), &error);
}

void Group::finish_joins(int last) {
  const std::vector<Submission> joins = std::exchange(joins_, {});
  owner_.on_all_joined(options_.id);
  for (const Submission& submission : joins) {
    Result result;
    result.value = last;
    submission.work->finish(std::move(result));
  }
}

void Group::fail_all(const Error& error) {
  executor_.abort(error);
  lane_.abort(error);
  fail_pending(error);
}

void Group::close() {
  leave();
  options_.id = -1;  // the number may be given to another set at once
}

void Group::fail_pending(const Error& error) {
  if (plan_) {
    for (Submission& submission : plan_->release()) owner_.on_finished(options_.id, submission, Result(), &error);
  }
  for (Submission& submission : std::exchange(late_joins_, {})) {
    owner_.on_finished(options_.id, submission, Result(), &error);
  }
  for (auto& [key, submission] : std::exchange(in_flight_, {})) {
    owner_.on_finished(options_.id, submission, Result(), &error);
  }
  for (Submission& submission : std::exchange(joins_, {})) {
    owner_.on_finished(options_.id, submission, Result(), &error);
  }
}

}  // namespace sirtaki
