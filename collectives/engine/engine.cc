#include "engine/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "engine/handshake.h"

namespace sirtaki {
namespace {

// Blocks signals on the engine's thread. They must reach the program's threads, so that a Python handler can interrupt
// the main thread's wait.
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

// A core that does not exist is the user's mistake, and must be reported.
void pin_to_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores) != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "SIRTAKI_THREAD_AFFINITY: this process may not use core " + std::to_string(core));
  }
}

// Announces the begin and the end of a wait.
class ObservedWait {
 public:
  explicit ObservedWait(const Observers& observers) : observers_(observers) {
    observers_.announce(&Observer::on_wait_begun);
  }
  ~ObservedWait() { observers_.announce(&Observer::on_wait_ended); }

 private:
  const Observers& observers_;
};

Error shut_down() { return {ErrorKind::kPrecondition, "Sirtaki has been shut down; use init()."}; }

bool cores_are_free(const Topology& topology) {
  return topology.local_size <= static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<Fabric> world)
    : options_(std::move(options)),
      queue_(world->transport().rank(), world->transport().size(), doorbell_, observers_),
      inquiry_(topology_, queue_, groups_, observers_, options_.stacks_by_force),
      failure_([this](const FailureCause& cause) { on_failure(cause); }),
      lock_(*this, doorbell_, Backoff(false)) {
  observers_.add(statistics_);
  Transport& transport = world->transport();
  const Introduction own = introduce(options_.program, options_.settings);
  std::vector<std::string> host_names, host_ids;
  for (const Introduction& introduction : shake_hands(transport, own, options_.settings)) {
    host_names.push_back(introduction.host_name);
    host_ids.push_back(introduction.host_id);
  }
  transport.set_patience(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options_.settings.start_timeout_seconds)));
  topology_ = make_topology(transport.rank(), host_ids, std::move(host_names));
  clock_ = compare_clocks(transport, topology_.host_numbers);
  lock_.set_backoff(Backoff(cores_are_free(topology_)));
  std::vector<int> all(host_ids.size());
  std::iota(all.begin(), all.end(), 0);
  const bool one_host = topology_.local_size == topology_.size;
  if (one_host && topology_.size > 1 && options_.settings.shared_memory) {
    std::string why;  // not shown: the shared-memory plane fails for the same reason, and reports it
    bells_ = HostBells::make(transport, why);
    if (bells_ != nullptr) {
      doorbell_.attach(bells_->of(topology_.rank));
      bells_->of(topology_.rank).life.prepare();
      CorePlacement placement(bells_, topology_.rank);
      placement.publish_allowed();
      world->share_memory(bells_);  // waits for all ranks, so that each has published its cores
      lock_.set_backoff(Backoff(placement));
      queue_.set_has_core(placement.has_cores_for_all(2));
    }
  }
  world->attach(doorbell_);
  network_ = world.get();
  control_ = world->transport().name();
  auto wire = make_wire(world->transport());
  make_group(0, all, std::move(world));
  groups_.add_mailbox(
      std::make_unique<Mailbox>(topology_.rank, topology_.size, std::move(wire), static_cast<GroupOwner&>(*this)));
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  if (!thread_.joinable()) return;
  failure_.record(
      own_cause(FailureKind::kEarlyExit, "rank " + std::to_string(topology_.rank) + " left without shutdown()"));
  leave_asked_ = true;
  wake();
  join_thread();
}

// ---- any thread ----

bool Engine::wait(Work& work, bool may_help) {
  queue_.begin_epoch();
  if (work.done()) return true;
  const ObservedWait observed(observers_);
  return lock_.wait(work, may_help);
}

void Engine::shutdown() {
  queue_.close(shut_down());
  leave_asked_ = true;
  wake();
  join_thread();
}

void Engine::join_thread() {
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

FailureCause Engine::fail_job(FailureCause cause) {
  if (cause.rank < 0) {
    const std::string site = std::move(cause.site);
    cause = own_cause(cause.kind, cause.text);
    cause.site = site;
  }
  failure_.record(cause);
  // Not for ever: the engine's thread may be blocked inside a library.
  return failure_.wait_until_notified(kWaitForAgreement);
}

void Engine::abort_job(int exit_code) {
  exit_code_ = exit_code;
  // The engine's thread may be blocked inside a library, but the job must end.
  std::thread([exit_code] {
    std::this_thread::sleep_for(kForcedExit);
    _exit(exit_code);
  }).detach();
  wake();
  join_thread();
}

std::string Engine::failure() const {
  const std::optional<FailureCause> cause = failure_.cause();
  return cause ? cause->describe() : "";
}

std::map<int, std::vector<int>> Engine::process_sets() {
  return queue_.with_sets([](const ProcessSets& sets) { return sets.ranks(); });
}

void Engine::set_fusion_threshold(std::int64_t bytes) {
  if (bytes < 0) {
    throw Error(ErrorKind::kInvalidArgument, "the fusion threshold cannot be negative: " + std::to_string(bytes));
  }
  queue_.post([this, bytes] { groups_.set_fusion_threshold(bytes); }, false);
}

// ---- the engine's thread ----

void Engine::run() {
  pthread_setname_np(pthread_self(), "sirtaki");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default makes every nap 50 us longer
  if (bells_ != nullptr) bells_->of(topology_.rank).life.begin();
  auto holder = lock_.begin();
  try {
    pin();
    while (!ended()) lock_.work(holder);
  } catch (const std::exception& error) {
    record(error);
    fail();
  }
  fail_everything(shut_down());
  lock_.end();
  failure_.set_notified();
  inquiry_.end();
  network_ = nullptr;
  groups_.clear();
  if (bells_ != nullptr) bells_->of(topology_.rank).life.end();
}

void Engine::pin() {
  const std::vector<int>& cores = options_.settings.thread_affinity;
  const auto local_rank = static_cast<std::size_t>(topology_.local_rank);
  if (cores.empty()) return;
  if (local_rank >= cores.size()) {
    throw Error(ErrorKind::kInvalidArgument, "SIRTAKI_THREAD_AFFINITY names " + std::to_string(cores.size()) +
                                                 " cores, but this is local rank " + std::to_string(local_rank));
  }
  pin_to_core(cores[local_rank]);
}

bool Engine::ended() const { return leave_asked_ && groups_.ended() && !failure_.cause(); }

void Engine::take_in() {
  // Read before the queue, so that this rank takes in all earlier submissions before it leaves.
  const bool leaves = leave_asked_.load(std::memory_order_acquire);
  if (queue_.changed()) queue_.take();
  while (SubmitQueue::Entry* const entry = queue_.next()) {
    Group* const group = groups_.find(entry->process_set);
    if (group != nullptr && run_here(*entry)) continue;
    if (group != nullptr) {
      group->plan().submit(std::move(entry->submission));
      continue;
    }
    const Error error(ErrorKind::kPrecondition, "process set " + std::to_string(entry->process_set) + " was removed");
    on_finished(entry->process_set, entry->submission, Result(), &error);
  }
  if (inquiry_.pending()) inquiry_.look();
  if (leaves) groups_.leave();
}

Activity Engine::activity() const {
  Activity result = groups_.activity();
  if (inquiry_.pending())
    result.longest_sleep = std::min<std::chrono::nanoseconds>(result.longest_sleep, kStacksOfInterpreter);
  return result;
}

void Engine::look(Clock::time_point now) {
  groups_.look(now);
  const int dead = dead_rank();
  if (dead < 0 || !groups_.wait_for(dead)) return;
  // A launcher that sees the process end knows more: its exit code, or its signal.
  if (first_dead_look_ == Clock::time_point()) first_dead_look_ = now;
  if (now - first_dead_look_ < kReportByLauncher) return;
  throw Error(ErrorKind::kAborted, "rank " + std::to_string(dead) + " has died, while rank " +
                                       std::to_string(topology_.rank) + " waited for it" + groups_.oldest_pending());
}

std::vector<StandingWait> Engine::list_waits_for_peers(Clock::time_point now) {
  return groups_.mailbox().list_waits(now, ProgressWatch::kPatience);
}

void Engine::on_finished(int group, Submission& submission, Result result, const Error* error) {
  observers_.announce(&Observer::on_completed, group, submission.request, error);
  submission.work->finish(std::move(result), error);
}

// Ranks have made different numbers of calls before all joined, so all restart the numbers of unnamed requests. This
// happens once for all joins of a rank, since one thread may call again before another sees that its join is done.
void Engine::on_all_joined(int group) {
  queue_.with_sets([&](ProcessSets& sets) {
    if (ProcessSet* const set = sets.find(group)) set->names.restart_numbers();
  });
}

// Requests that not all ranks of a group make: true if this was one.
bool Engine::run_here(SubmitQueue::Entry& entry) {
  const Request& request = entry.submission.request;
  if (is_point_to_point(request.verb)) {
    groups_.mailbox().submit(entry.process_set, std::move(entry.submission));
    return true;
  }
  if (!is_about_members_only_set(request)) return false;
  const Agreement agreement{request, {}};
  on_process_set(agreement, std::move(entry.submission));
  return true;
}

// ---- failure of the job ----

FailureCause Engine::own_cause(FailureKind kind, const std::string& text) const {
  return {kind, topology_.rank, topology_.host_name(topology_.rank), text, wall_clock(), "", topology_.rank};
}

// A rank of this host that has died or is dying; -1 if there is none.
int Engine::find_dying() const {
  const auto end = Clock::now() + kProcessDeath;
  int dead = dead_rank();
  while (bells_ != nullptr && dead < 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    dead = dead_rank();
  }
  return dead;
}

// Called for each new cause before any thread can read it. From now on submissions are refused, not failed later.
void Engine::on_failure(const FailureCause& cause) {
  queue_.close(Error(ErrorKind::kAborted, cause.describe()));
  inquiry_.close("the job has failed: " + cause.describe());
  post_failure();
}

// Makes the engine's next step throw, on whichever thread it runs.
void Engine::post_failure() {
  queue_.post([this] { failure_.raise(); });
}

// Records an error of this rank. Another rank's failure may be earlier. If a rank of this host has died, that is the
// cause.
void Engine::record(const std::exception& error) {
  if (const auto* failure = dynamic_cast<const JobFailure*>(&error)) {
    failure_.adopt(*failure);
  } else {
    FailureCause cause = own_cause(FailureKind::kFailedCollective, error.what());
    const auto* const lost = dynamic_cast<const LostRank*>(&error);
    if (const int dead = lost != nullptr ? lost->rank() : find_dying(); dead >= 0) {
      cause.kind = FailureKind::kLostConnection;
      cause.rank = dead;
      cause.host = topology_.host_name(dead);
    }
    failure_.record(cause);
  }
  post_failure();  // again, since this thread may have run the call that another thread posted
}

// The job cannot continue: fails all works here, notifies the other ranks, then waits for shutdown().
void Engine::fail() {
  doorbell_.set_awake();
  // First, so that the work that has thrown does not run again.
  fail_everything(Error(ErrorKind::kAborted, failure()));
  if (!failure_.agreed()) agree_on_failure();
  flush_world();
  failure_.set_notified();
  lock_.sleep_until([this] { return leave_asked_ || exit_code_ != kNoExit; });
  try {
    if (exit_code_ != kNoExit) groups_.world().fabric().abort_job(exit_code_);
  } catch (const std::exception&) {
    // Then this process ends by itself, and the starter sees its exit code.
  }
}

void Engine::fail_everything(const Error& error) {
  groups_.fail_all(error);
  for (SubmitQueue::Entry& entry : queue_.take_all()) {
    on_finished(entry.process_set, entry.submission, Result(), &error);
  }
}

// Waits until the coordinator has sent the first failure to all ranks.
void Engine::agree_on_failure() {
  Group& world = groups_.world();
  const auto limit = Clock::now() + kAgreementOnFailure;
  try {
    world.announce_failure(*failure_.cause());
    while (Clock::now() < limit) {
      if (!world.progress(false)) lock_.pause();
    }
  } catch (const JobFailure& failure) {
    failure_.adopt(failure);
  } catch (const std::exception&) {
    // The transport is broken, so no rank can be reached.
  }
}

void Engine::flush_world() {
  Group& world = groups_.world();
  const auto limit = Clock::now() + kAgreementOnFailure;
  try {
    while (!world.flushed() && Clock::now() < limit) lock_.pause();
  } catch (const std::exception&) {
  }
}

// ---- process sets ----

void Engine::make_group(int id, std::vector<int> ranks, std::unique_ptr<Fabric> fabric) {
  if (fabric != nullptr) {
    GroupOptions options{.id = id, .ranks = ranks, .hosts = {}, .settings = options_.settings};
    if (id == 0) options.messages_before = kMessagesOfHandshake;
    std::vector<int> hosts;
    for (const int r : ranks) {
      options.hosts.push_back(topology_.host_name(r));
      hosts.push_back(topology_.host_numbers[static_cast<std::size_t>(r)]);
    }
    DataPlanes planes = fabric->make_planes(hosts);
    PlanChannel channel = make_plan_channel(*fabric, hosts);
    groups_.add(id, std::make_unique<Group>(std::move(options), std::move(fabric), std::move(planes),
                                            std::move(channel), static_cast<GroupOwner&>(*this), observers_));
  }
  queue_.with_sets([&](ProcessSets& sets) { sets.add(id, std::move(ranks)); });
}

// Planned batches run on separate planes, since they have no fixed order relative to negotiated batches. The planes are
// made with the group, when all ranks are at the same point of the program.
PlanChannel Engine::make_plan_channel(Fabric& fabric, const std::vector<int>& hosts) {
  PlanChannel channel{.fabric = nullptr, .planes = {}, .global_rank = topology_.rank, .clock_offset = clock_.offset};
  if (!options_.settings.lock_plan || options_.settings.cache_capacity == 0 || hosts.size() == 1) return channel;
  std::vector<int> all(hosts.size());
  std::iota(all.begin(), all.end(), 0);
  channel.fabric = fabric.split(all);
  channel.planes = channel.fabric->make_planes(hosts);
  return channel;
}

void Engine::on_process_set(const Agreement& agreement, std::optional<Submission> submission) {
  Result result;
  std::optional<Error> error;
  try {
    const std::vector<int> ranks(agreement.request.splits.begin(), agreement.request.splits.end());
    if (agreement.request.verb == Verb::kAddProcessSet && is_about_members_only_set(agreement.request)) {
      result.value = agreement.request.root;
      make_group(agreement.request.root, ranks, groups_.world().fabric().split(ranks, Callers::kMembers));
    } else if (agreement.request.verb == Verb::kAddProcessSet) {
      result.value = add_process_set(ranks);
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
  const auto [existing, id] =
      queue_.with_sets([&](const ProcessSets& sets) { return std::pair(sets.id_of(ranks), sets.unused_id()); });
  if (existing) {
    throw Error(ErrorKind::kPrecondition, list_ranks(ranks) + " already form process set " + std::to_string(*existing));
  }
  make_group(id, ranks, groups_.world().fabric().split(ranks));
  return id;
}

void Engine::remove_process_set(int id) {
  const bool exists = queue_.with_sets([&](ProcessSets& sets) { return sets.find(id) != nullptr; });
  if (!exists) throw Error(ErrorKind::kPrecondition, "process set " + std::to_string(id) + " was removed");
  groups_.close(id);
  groups_.mailbox().on_removed(id);
  queue_.with_sets([&](ProcessSets& sets) { sets.remove(id); });
}

}  // namespace sirtaki
