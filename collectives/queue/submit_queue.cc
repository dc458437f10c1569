#include "queue/submit_queue.h"

#include <algorithm>
#include <cstring>

#include "queue/request_check.h"

namespace sirtaki {
namespace {

// In a group of one rank: does this request only copy host memory? That is not worth waking a thread.
bool is_copy(const Submission& submission) {
  const Request& request = submission.request;
  return request.verb == Verb::kAllreduce && request.prescale == 1 && request.postscale == 1 &&
         std::ranges::all_of(request.tensors, [](const TensorSpec& t) { return t.device == kHostDevice; }) &&
         std::ranges::all_of(submission.addresses, [](const Address& a) { return a.out != nullptr; });
}

Result copied(const Submission& submission) {
  Result result;
  result.buffers.resize(submission.addresses.size());
  for (std::size_t t = 0; t < submission.addresses.size(); ++t) {
    const TensorSpec& tensor = submission.request.tensors[t];
    const Address& address = submission.addresses[t];
    const auto bytes = static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
    if (address.in != address.out && bytes > 0) std::memcpy(address.out, address.in, bytes);
    result.shapes.push_back(tensor.shape);
  }
  return result;
}

// The name of a send or a receive, for people: several may have the same.
std::string name_of_transfer(int process_set, const Request& request) {
  std::string name = std::string(name_of(request.verb)) + (request.verb == Verb::kSend ? " to" : " from") + " rank " +
                     std::to_string(request.root) + ", tag " + std::to_string(request.tag);
  if (process_set != 0) name += ", process set " + std::to_string(process_set);
  return name;
}

}  // namespace

std::shared_ptr<Work> SubmitQueue::put(int process_set, Submission submission, WakeUp wake_up) {
  std::shared_ptr<Work> work = submission.work;
  const bool point_to_point = is_point_to_point(submission.request.verb);
  if (point_to_point) {
    submission.request.name = name_of_transfer(process_set, submission.request);
    work->set_needs_no_vote();
  }
  std::unique_lock lock(mutex_);
  if (refusal_) throw Error(*refusal_);
  ProcessSet& set = sets_.member_set(process_set, submission.request);
  sets_.resolve_ranks(set, submission.request);
  check_request(submission.request, static_cast<int>(set.ranks.size()));
  check_addresses(submission.request, submission.addresses);
  if (set.ranks.size() == 1 && is_copy(submission)) {
    lock.unlock();
    work->finish(copied(submission));
    return work;
  }
  std::shared_ptr<Work> after = point_to_point ? nullptr : set.names.take(submission.request, work);
  observers_.announce(&Observer::on_submitted, process_set, submission.request);
  const bool has_core = has_core_ || submission.ready != nullptr;
  const bool wakes =
      wake_up == WakeUp::kNow || wake_up == WakeUp::kSoon || (wake_up == WakeUp::kIfCoreFree && has_core);
  if (wakes) may_gather_ = wake_up == WakeUp::kSoon && !has_core && (entries_.empty() || may_gather_);
  submission.since = coarse_now();
  submission.epoch = epoch_.load(std::memory_order_acquire);
  entries_.push_back({process_set, std::move(submission), std::move(after)});
  count_change();
  lock.unlock();
  if (wakes) doorbell_.ring(false);
  return work;
}

void SubmitQueue::post(std::function<void()> call, bool wakes) {
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    may_gather_ = false;
    count_change();
  }
  if (wakes) doorbell_.ring(true);
}

void SubmitQueue::close(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!refusal_ || error.kind() == ErrorKind::kAborted) refusal_.emplace(error);
}

// Swaps two vectors, so that both keep their memory.
void SubmitQueue::take() {
  taken_.clear();  // before locking: destroying a submission may fail its work, and the work's callback may submit
  returned_ = 0;
  std::unique_lock lock(mutex_);
  while (!calls_.empty()) {
    const auto calls = std::exchange(calls_, {});
    lock.unlock();
    for (const auto& call : calls) call();
    lock.lock();
  }
  changes_taken_ = changes_.load(std::memory_order_relaxed);
  taken_.swap(entries_);
  may_gather_ = false;
  lock.unlock();
  for (Entry& entry : std::exchange(postponed_, {})) taken_.push_back(std::move(entry));
}

SubmitQueue::Entry* SubmitQueue::next() {
  while (returned_ < taken_.size()) {
    Entry& entry = taken_[returned_++];
    if (entry.after == nullptr || entry.after->done()) return &entry;
    postponed_.push_back(std::move(entry));
  }
  return nullptr;
}

std::vector<SubmitQueue::Entry> SubmitQueue::take_all() {
  std::vector<Entry> all = std::exchange(postponed_, {});
  for (; returned_ < taken_.size(); ++returned_) all.push_back(std::move(taken_[returned_]));
  const std::lock_guard lock(mutex_);
  calls_.clear();
  changes_taken_ = changes_.load(std::memory_order_relaxed);
  for (Entry& entry : std::exchange(entries_, {})) all.push_back(std::move(entry));
  return all;
}

}  // namespace sirtaki
