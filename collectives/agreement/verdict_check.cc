#include "agreement/verdict_check.h"

#include <algorithm>

#include "base/error.h"
#include "queue/request_check.h"

namespace sirtaki {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kAborted, "a control message is not valid: " + what +
                                       "; the ranks may run different builds of Sirtaki, or memory was overwritten");
}

void check(const Request& request, int size) {
  if (is_point_to_point(request.verb)) refuse("it lists a send or a receive");
  try {
    check_request(request, size);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

std::size_t sizes_due(const Request& request, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (request.verb == Verb::kAllgather) return request.tensors.size() * ranks;
  return request.verb == Verb::kAlltoall ? ranks * ranks : 0;
}

void check(const Agreement& agreement, int size) {
  const Request& request = agreement.request;
  check(request, size);
  if (request.verb == Verb::kJoin) refuse("it lists a join among the agreements");
  if (agreement.sizes.size() != sizes_due(request, size)) refuse("a wrong number of sizes");
  // As if every rank's rows came together.
  Request whole = request;
  std::int64_t rows = 0;
  for (const std::int64_t each : agreement.sizes) {
    if (each < 0 || __builtin_add_overflow(rows, each, &rows)) refuse("impossible sizes");
  }
  if (agreement.sizes.empty()) return;
  whole.splits.clear();
  whole.verb = Verb::kAllgather;
  std::vector<TensorSpec> tensors(request.tensors.begin(), request.tensors.end());
  for (TensorSpec& tensor : tensors) tensor.shape[0] = rows;
  whole.tensors = TensorSpecs(std::move(tensors));
  check(whole, size);
}

void check(const Item& item, int size) {
  if (item.contributors < 1 || item.contributors > size) refuse(std::to_string(item.contributors) + " contributors");
  if (item.agreement) check(*item.agreement, size);
}

}  // namespace

void check_vote(const Vote& vote, int size) {
  if (vote.slot == kNoCacheSlot) check(vote.request, size);
}

void check_standing(const StandingWait& wait, int size) {
  if (wait.peer < -1 || wait.peer >= size) refuse("a wait for rank " + std::to_string(wait.peer));
}

void check_verdict(const Verdict& verdict, int size) {
  for (const ItemList& batch : verdict.batches) {
    if (batch.empty()) refuse("an empty batch");
    for (const Item& item : batch) check(item, size);
  }
  if (verdict.arrivals.size() != verdict.batches.size()) refuse("arrivals that do not match its batches");
  for (const BatchArrival& arrival : verdict.arrivals) {
    if (arrival.last < -1 || arrival.last >= size) refuse("rank " + std::to_string(arrival.last));
  }
  for (const std::vector<CacheSlot>& batch : verdict.plan) {
    if (batch.empty()) refuse("an empty batch in a plan");
  }
  for (const std::int64_t rank : verdict.gone) {
    if (rank < 0 || rank >= size) refuse("rank " + std::to_string(rank));
  }
  if (verdict.last_joined < -1 || verdict.last_joined >= size) refuse("rank " + std::to_string(verdict.last_joined));
}

}  // namespace sirtaki
