// Station 2: how a request comes into the engine, on the caller's thread.
#include <algorithm>
#include <cstring>

#include "engine.h"
#include "request_check.h"

namespace sirtaki {
namespace {

// Does a rank alone only have to copy, on the host, to memory that is there? Not worth waking a thread.
bool is_copy(const Request& request, const std::vector<Address>& addresses) {
  return request.verb == Verb::kAllreduce && request.prescale == 1 && request.postscale == 1 &&
         std::ranges::all_of(request.tensors, [](const TensorSpec& t) { return t.device == kHostDevice; }) &&
         std::ranges::all_of(addresses, [](const Address& a) { return a.out != nullptr; });
}

Result copied(const Request& request, const std::vector<Address>& addresses) {
  Result result;
  result.buffers.resize(request.tensors.size());
  for (std::size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorSpec& tensor = request.tensors[t];
    const auto bytes = static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
    if (addresses[t].in != addresses[t].out && bytes > 0) std::memcpy(addresses[t].out, addresses[t].in, bytes);
    result.shapes.push_back(tensor.shape);
  }
  return result;
}

}  // namespace

Error Engine::shut_down() { return {ErrorKind::kPrecondition, "Sirtaki has been shut down; use init()."}; }

std::shared_ptr<Work> Engine::submit(int group, Request request, std::vector<Address> addresses, Allocate allocate,
                                     EventPtr ready) {
  auto work = enqueue(group, std::move(request), std::move(addresses), std::move(allocate), std::move(ready));
  doorbell_.ring(false);
  return work;
}

std::shared_ptr<Work> Engine::submit_quietly(int group, Request request, std::vector<Address> addresses,
                                             Allocate allocate, EventPtr ready) {
  auto work = enqueue(group, std::move(request), std::move(addresses), std::move(allocate), std::move(ready));
  quiet_.fetch_add(1, std::memory_order_release);
  return work;
}

std::shared_ptr<Work> Engine::submit_ahead(int group, Request request, std::vector<Address> addresses, EventPtr ready) {
  const bool rings = works_beside_ || ready != nullptr;
  auto work = enqueue(group, std::move(request), std::move(addresses), nullptr, std::move(ready));
  if (rings) {
    doorbell_.ring(false);
  } else {
    quiet_.fetch_add(1, std::memory_order_release);
  }
  return work;
}

std::shared_ptr<Work> Engine::enqueue(int group, Request request, std::vector<Address> addresses, Allocate allocate,
                                      EventPtr ready) {
  auto work = std::make_shared<Work>();
  std::unique_lock lock(mutex_);
  if (failure_) throw JobFailure(*failure_, failure_agreed_);
  if (leaving_) throw shut_down();
  ProcessSet& set = set_for(group, request);
  fill_in(set, request);
  check_request(request, static_cast<int>(set.ranks.size()));
  check_addresses(request, addresses);
  if (set.ranks.size() == 1 && is_copy(request, addresses)) {
    lock.unlock();
    work->finish(copied(request, addresses));
    return work;
  }
  const bool nameless = request.name.empty();
  std::uint64_t& counter = set.counters[static_cast<std::size_t>(request.verb)];
  if (nameless) {
    request.name = std::string(name_of(request.verb)) + ".noname";
    request.sequence = counter + 1;
  }
  std::shared_ptr<Work> after = set.names.take(request, work);
  if (nameless) ++counter;
  queue_.push_back({group,
                    {std::move(request), std::move(addresses), work, std::move(allocate), std::move(ready)},
                    std::move(after)});
  queue_.back().submission.since = coarse_now();
  queue_.back().submission.epoch = epoch_.load(std::memory_order_acquire);
  return work;
}

Engine::ProcessSet& Engine::set_for(int group, const Request& request) {
  const auto found = sets_.find(group);
  if (found == sets_.end()) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name_of(request.verb)) + " '" + request.name +
                                                 "': there is no process set " + std::to_string(group));
  }
  if (found->second.rank < 0) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name_of(request.verb)) + " '" + request.name + "': rank " +
                                                 std::to_string(topology_.rank) + " is not in process set " +
                                                 std::to_string(group) + ", which holds " +
                                                 list_ranks(found->second.ranks));
  }
  return found->second;
}

// Turns what users know (global ranks) into what the group knows, where that needs the table of sets.
void Engine::fill_in(const ProcessSet& set, Request& request) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name_of(request.verb)) + " '" + request.name + "': " + why);
  };
  if (request.verb == Verb::kBroadcast) {
    const int root = index_of(set.ranks, request.root);
    if (root < 0) refuse("root rank " + std::to_string(request.root) + " is not among " + list_ranks(set.ranks));
    request.root = root;
  } else if (request.verb == Verb::kAddProcessSet) {
    std::vector<std::int64_t>& ranks = request.splits;
    std::sort(ranks.begin(), ranks.end());
    if (ranks.empty()) refuse("no ranks were given");
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const std::string shown = std::to_string(ranks[i]);
      if (ranks[i] < 0 || ranks[i] >= topology_.size) {
        refuse("rank " + shown + " does not exist; there are " + std::to_string(topology_.size) + " ranks");
      }
      if (i > 0 && ranks[i] == ranks[i - 1]) refuse("rank " + shown + " is given twice");
    }
    for (const auto& [id, other] : sets_) {
      if (std::equal(other.ranks.begin(), other.ranks.end(), ranks.begin(), ranks.end())) {
        refuse(list_ranks(other.ranks) + " already form process set " + std::to_string(id));
      }
    }
  } else if (request.verb == Verb::kRemoveProcessSet) {
    const bool exists = request.splits.size() == 1 && sets_.contains(static_cast<int>(request.splits[0]));
    if (!exists || request.splits[0] == 0) refuse("process set " + to_string(request.splits) + " cannot be removed");
  } else if (request.verb == Verb::kJoin && static_cast<int>(set.ranks.size()) != topology_.size) {
    refuse("works on the global process set only");
  }
}

}  // namespace sirtaki
