#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "handshake.h"
#include "request_check.h"
#include "transport/shm.h"

namespace sirtaki {
namespace {

// MPI cannot wake a process, so an engine at rest looks this often whether others have said something: that is how a
// rank that submits nothing learns that the job has failed, or is asked where it is.
constexpr std::chrono::seconds kIdleLook{1};
// Where all others ring, a look is only a second line of defence.
constexpr std::chrono::seconds kIdleLookWithBells{60};
// How late a submission that nobody hurries may be seen while others are under way.
constexpr std::chrono::milliseconds kLongestNapWithBells{4};
constexpr std::chrono::seconds kLastResort{5};

Error not_running(const std::string& what) {
  return {ErrorKind::kPrecondition, "Sirtaki has " + what + "; use init()."};
}

int index_of(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

// Signals are for the user's threads: a handler of Python's must be able to interrupt the main thread's wait.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// A core that does not exist is an error of the user's that must not go unseen.
void pin_to_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores) != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "SIRTAKI_THREAD_AFFINITY: this process may not use core " + std::to_string(core));
  }
}

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

bool cores_are_free(const Topology& topology) {
  return topology.local_size <= static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<Transport> world)
    : options_(std::move(options)), backoff_(false) {
  const Introduction own = introduce(options_.program, options_.settings);
  std::vector<std::string> host_ids;
  for (const Introduction& introduction : shake_hands(*world, own, options_.settings)) {
    hosts_.push_back(introduction.host_name);
    host_ids.push_back(introduction.host_id);
  }
  topology_ = make_topology(world->rank(), host_ids);
  host_numbers_ = number_hosts(host_ids);
  backoff_ = Backoff(cores_are_free(topology_));
  std::vector<int> all;
  for (int rank = 0; rank < topology_.size; ++rank) all.push_back(rank);
  const bool one_host = topology_.local_size == topology_.size;
  if (one_host && topology_.size > 1 && options_.settings.shared_memory) {
    std::string why;  // the data plane meets the same obstacle, and tells
    bells_ = HostBells::make(*world, why);
    if (bells_ != nullptr) {
      doorbell_.attach(bells_->of(topology_.rank));
      Seats seats(bells_, topology_.rank);
      seats.publish();
      world = make_shm_transport(std::move(world), bells_, all, why);  // meets all ranks
      backoff_ = Backoff(seats);
    }
  }
  control_ = world->name();
  make_group(0, all, std::move(world));
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    if (!failure_) {
      failure_ = Error(ErrorKind::kAborted, "rank " + std::to_string(topology_.rank) + " went away without shutdown()");
    }
  }
  doorbell_.ring(true);
  join_thread();
}

// ---- any thread ----

std::shared_ptr<Work> Engine::submit(int group, Request request, std::vector<Address> addresses, Allocate allocate,
                                     EventPtr ready) {
  auto work = enqueue(group, std::move(request), std::move(addresses), std::move(allocate), std::move(ready));
  doorbell_.ring(false);
  return work;
}

std::shared_ptr<Work> Engine::submit_quietly(int group, Request request, std::vector<Address> addresses,
                                             Allocate allocate, EventPtr ready) {
  return enqueue(group, std::move(request), std::move(addresses), std::move(allocate), std::move(ready));
}

std::shared_ptr<Work> Engine::enqueue(int group, Request request, std::vector<Address> addresses, Allocate allocate,
                                      EventPtr ready) {
  auto work = std::make_shared<Work>();
  std::unique_lock lock(mutex_);
  if (failure_) throw *failure_;
  if (leaving_) throw not_running("been shut down");
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
  if (!set.names.insert({request.name, request.sequence}).second) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + request.title() +
                    "' is still under way on this rank: a name can be used again only after its operation has ended. "
                    "Give every call a name of its own, and do not let a graph with a call in it run several times "
                    "at once, as a parallel map over a dataset or two threads do.");
  }
  if (nameless) ++counter;
  queue_.push_back({group, {std::move(request), std::move(addresses), work, std::move(allocate), std::move(ready)}});
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

void Engine::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  doorbell_.ring(true);
  join_thread();
}

void Engine::join_thread() {
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Engine::abort_job(int exit_code, const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Error(ErrorKind::kAborted, cause);
    exit_code_ = exit_code;
  }
  // The engine's thread may be held up inside a library; the job has to end all the same.
  std::thread([exit_code] {
    std::this_thread::sleep_for(kLastResort);
    _exit(exit_code);
  }).detach();
  doorbell_.ring(true);
  join_thread();
}

std::map<int, std::vector<int>> Engine::process_sets() const {
  const std::lock_guard lock(mutex_);
  std::map<int, std::vector<int>> result;
  for (const auto& [id, set] : sets_) result[id] = set.ranks;
  return result;
}

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->what() : "";
}

void Engine::set_fusion_threshold(std::int64_t bytes) {
  if (bytes < 0) {
    throw Error(ErrorKind::kInvalidArgument, "the fusion threshold cannot be negative: " + std::to_string(bytes));
  }
  const std::lock_guard lock(mutex_);
  new_fusion_threshold_ = bytes;
}

bool Engine::wait_for_question() {
  std::unique_lock lock(question_mutex_);
  question_changed_.wait(lock, [this] { return asked_ || no_more_questions_; });
  return std::exchange(asked_, false);
}

void Engine::answer(const std::string& stacks) {
  {
    const std::lock_guard lock(mutex_);
    answer_ = stacks;
  }
  doorbell_.ring(true);
}

// ---- the engine's thread ----

void Engine::run() {
  pthread_setname_np(pthread_self(), "sirtaki");
  own_thread_ = std::this_thread::get_id();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default makes every nap 50 us longer
  bool pinned = options_.settings.thread_affinity.empty();
  Role role(role_);
  try {
    while (!ended()) {
      if (!std::exchange(pinned, true)) pin();
      if (!step()) rest(role);
    }
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kAborted, "rank " + std::to_string(topology_.rank) + " failed: " + error.what()));
  }
  {
    const std::lock_guard lock(question_mutex_);
    no_more_questions_ = true;
  }
  question_changed_.notify_all();
  fail_everything(not_running("been shut down"));
  over_ = true;
  groups_.clear();
}

void Engine::pin() {
  const std::vector<int>& cores = options_.settings.thread_affinity;
  const auto local_rank = static_cast<std::size_t>(topology_.local_rank);
  if (local_rank >= cores.size()) {
    throw Error(ErrorKind::kInvalidArgument, "SIRTAKI_THREAD_AFFINITY names " + std::to_string(cores.size()) +
                                                 " cores, but this is local rank " + std::to_string(local_rank));
  }
  pin_to_core(cores[local_rank]);
}

bool Engine::step() {
  // Read before the queue is: whatever a waiting thread submitted before is then known.
  const std::uint64_t begun = waits_begun_.load(std::memory_order_acquire);
  take_in_queue();
  const bool awaited = begun > waits_ended_.load(std::memory_order_acquire);
  bool moved = false;
  // A group may make or remove others, never itself.
  for (auto group = groups_.begin(); group != groups_.end();) {
    const int id = group->first;
    moved |= group->second->progress(awaited);
    group = groups_.upper_bound(id);
  }
  for (auto& group : closing_) moved |= group->progress(awaited);
  std::erase_if(closing_, [](const auto& group) { return group->all_left() && group->settled() && group->flushed(); });
  if (moved) backoff_.reset();
  return moved;
}

Engine::Outlook Engine::outlook() const {
  Outlook result;
  const auto add = [&result](Group& group) {
    result.active |= group.active() || !group.flushed();
    result.moving_data |= group.moving_data();
    result.wakes &= group.wakes();
    result.watching |= group.watching();
  };
  for (const auto& [id, group] : groups_) add(*group);
  for (const auto& group : closing_) {
    add(*group);
    result.active = true;
  }
  return result;
}

// The step has moved nothing: wait for something that can move.
void Engine::rest(Role& role) {
  const Outlook now = outlook();
  if (now.active && backoff_.spin(now.moving_data)) return;
  Rest how = Rest::kAsleep;
  std::chrono::nanoseconds limit = now.wakes && !now.watching ? kIdleLookWithBells : kIdleLook;
  if (now.active) {
    how = Rest::kNapping;
    limit = backoff_.nap_length(now.wakes ? kLongestNapWithBells : Backoff::kLongestNap);
  } else {
    backoff_.reset();
    ++statistics_.idle_wakeups;
  }
  const std::uint32_t heard = doorbell_.lie_down(how);
  if (!step()) {
    role.unlock();
    doorbell_.sleep(how, heard, limit);
    role.lock();
  }
  doorbell_.get_up();
}

void Engine::take_in_queue() {
  std::vector<Queued> queue;
  bool leave = false;
  std::optional<std::string> stacks;
  std::optional<std::int64_t> threshold;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
    queue.swap(queue_);
    leave = leaving_;
    stacks = std::exchange(answer_, std::nullopt);
    threshold = std::exchange(new_fusion_threshold_, std::nullopt);
  }
  for (Queued& queued : queue) {
    const auto group = groups_.find(queued.group);
    if (group != groups_.end()) {
      group->second->submit(std::move(queued.submission));
    } else {
      const Error error(ErrorKind::kPrecondition, "process set " + std::to_string(queued.group) + " was removed");
      on_finished(queued.group, queued.submission, Result(), &error);
    }
  }
  if (stacks) {
    for (const int id : std::exchange(asking_, {})) {
      if (groups_.contains(id)) groups_[id]->answer(*stacks);
    }
  }
  for (auto& [id, group] : groups_) {
    if (leave && !group->leaving()) group->leave();
    if (threshold) group->set_fusion_threshold(*threshold);
  }
}

bool Engine::ended() {
  const std::lock_guard lock(mutex_);
  // A failure has to be told first: take_in_queue() throws it.
  return !failure_ && leaving_ && closing_.empty() &&
         std::all_of(groups_.begin(), groups_.end(), [](const auto& group) {
           return group.second->all_left() && group.second->settled() && group.second->flushed();
         });
}

bool Engine::may_stop() const {
  const std::lock_guard lock(mutex_);
  return leaving_ || exit_code_.has_value();
}

void Engine::make_group(int id, std::vector<int> ranks, std::unique_ptr<Transport> transport) {
  const int rank = index_of(ranks, topology_.rank);
  if (transport != nullptr) {
    GroupOptions options{id, ranks, {}, options_.settings};
    std::vector<int> hosts;
    for (const int r : ranks) {
      options.hosts.push_back(hosts_[static_cast<std::size_t>(r)]);
      hosts.push_back(host_numbers_[static_cast<std::size_t>(r)]);
    }
    DataPlanes planes = options_.make_planes(*transport, hosts);
    for (const auto& plane : planes) plane->count_uses(plane_uses_.of(plane->name()));
    PlanLane lane = make_lane(*transport, hosts);
    groups_[id] = std::make_unique<Group>(std::move(options), std::move(transport), std::move(planes), std::move(lane),
                                          static_cast<GroupOwner&>(*this), statistics_);
  }
  const std::lock_guard lock(mutex_);
  sets_[id].ranks = std::move(ranks);
  sets_[id].rank = rank;
}

// A locked plan's batches run on planes of their own, since they keep no order with what is negotiated. Made together
// with the group, when all ranks are at the same point.
PlanLane Engine::make_lane(Transport& transport, const std::vector<int>& hosts) {
  PlanLane lane;
  if (!options_.settings.lock_plan || options_.settings.cache_capacity == 0 || transport.size() == 1) return lane;
  std::vector<int> all;
  for (int rank = 0; rank < transport.size(); ++rank) all.push_back(rank);
  lane.transport = transport.split(all);
  lane.planes = options_.make_planes(*lane.transport, hosts);
  for (const auto& plane : lane.planes) plane->count_uses(plane_uses_.of(plane->name()));
  return lane;
}

void Engine::on_finished(int group, Submission& submission, Result result, const Error* error) {
  {
    const std::lock_guard lock(mutex_);
    const auto set = sets_.find(group);
    if (set != sets_.end()) set->second.names.erase({submission.request.name, submission.request.sequence});
  }
  if (submission.work->is_followed()) noticed();
  if (error != nullptr) {
    submission.work->fail(*error);
  } else {
    submission.work->finish(std::move(result));
  }
}

// Ranks have made unequal numbers of calls when all have joined, and begin to count anew: once, since a thread that
// goes on may call again before another one learns that its join has ended.
void Engine::on_all_joined(int group, const std::vector<Submission>& joins) {
  const std::lock_guard lock(mutex_);
  const auto set = sets_.find(group);
  if (set == sets_.end()) return;
  for (const Submission& join : joins) set->second.names.erase({join.request.name, join.request.sequence});
  std::ranges::fill(set->second.counters, 0);
}

void Engine::on_process_set(const Agreement& agreement, std::optional<Submission> submission) {
  Result result;
  std::optional<Error> error;
  try {
    if (agreement.request.verb == Verb::kAddProcessSet) {
      result.value = add_process_set({agreement.request.splits.begin(), agreement.request.splits.end()});
    } else {
      remove_process_set(static_cast<int>(agreement.request.splits[0]));
    }
  } catch (const Error& caught) {
    error = caught;
  }
  if (submission) on_finished(0, *submission, std::move(result), error ? &*error : nullptr);
  if (error && error->kind() != ErrorKind::kPrecondition) throw *error;
}

int Engine::add_process_set(const std::vector<int>& ranks) {
  for (const auto& [id, existing] : process_sets()) {
    if (existing == ranks) {
      throw Error(ErrorKind::kPrecondition, list_ranks(ranks) + " already form process set " + std::to_string(id));
    }
  }
  int id = next_id_;
  if (free_ids_.empty()) {
    ++next_id_;
  } else {
    id = free_ids_.front();
    free_ids_.erase(free_ids_.begin());
  }
  make_group(id, ranks, groups_[0]->transport().split(ranks));
  return id;
}

void Engine::remove_process_set(int id) {
  const Error removed(ErrorKind::kPrecondition, "process set " + std::to_string(id) + " was removed");
  {
    const std::lock_guard lock(mutex_);
    if (!sets_.contains(id)) throw removed;
  }
  if (const auto group = groups_.find(id); group != groups_.end()) {
    group->second->close();
    closing_.push_back(std::move(group->second));
    groups_.erase(group);
  }
  free_ids_.push_back(id);
  const std::lock_guard lock(mutex_);
  sets_.erase(id);
}

void Engine::on_asked_for_stacks(int group) {
  asking_.push_back(group);
  {
    const std::lock_guard lock(question_mutex_);
    asked_ = true;
  }
  question_changed_.notify_all();
}

void Engine::say(const std::string& line) { options_.say(line); }

}  // namespace sirtaki
