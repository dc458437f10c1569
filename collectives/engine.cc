#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "handshake.h"
#include "transport/shm.h"

namespace sirtaki {
namespace {

// MPI cannot wake a process, so an engine at rest looks this often whether others have said something: that is how a
// rank that submits nothing learns that the job has failed, or is asked where it is.
constexpr std::chrono::seconds kIdleLook{1};
// Where all others ring, a look is only a second line of defence.
constexpr std::chrono::seconds kIdleLookWithBells{60};
// How late a submission that nobody hurries may be seen while others are under way.
constexpr std::chrono::milliseconds kLongestNapWithBells{20};
constexpr std::chrono::seconds kLastResort{5};
// How often a rank that waits looks after the others.
constexpr std::chrono::milliseconds kLookAround{250};

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
  world->set_patience(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options_.settings.start_timeout_seconds)));
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
      bells_->of(topology_.rank).life.prepare();
      Seats seats(bells_, topology_.rank);
      seats.publish();
      world = make_shm_transport(std::move(world), bells_, all, why);  // meets all ranks
      backoff_ = Backoff(seats);
      works_beside_ = seats.suffice(2);
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
      failure_ =
          own_cause(CauseKind::kEarlyExit, "rank " + std::to_string(topology_.rank) + " went away without shutdown()");
    }
  }
  doorbell_.ring(true);
  join_thread();
}

// ---- any thread ----

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

void Engine::abort_job(int exit_code) {
  {
    const std::lock_guard lock(mutex_);
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

std::string Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->describe() : "";
}

std::optional<Cause> Engine::cause() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Engine::set_fusion_threshold(std::int64_t bytes) {
  if (bytes < 0) {
    throw Error(ErrorKind::kInvalidArgument, "the fusion threshold cannot be negative: " + std::to_string(bytes));
  }
  const std::lock_guard lock(mutex_);
  new_fusion_threshold_ = bytes;
  quiet_.fetch_add(1, std::memory_order_release);
}

// ---- the engine's thread ----

void Engine::run() {
  pthread_setname_np(pthread_self(), "sirtaki");
  own_thread_ = std::this_thread::get_id();
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default makes every nap 50 us longer
  if (bells_ != nullptr) bells_->of(topology_.rank).life.begin();
  bool pinned = options_.settings.thread_affinity.empty();
  Role role(role_);
  try {
    while (!ended()) {
      if (!std::exchange(pinned, true)) pin();
      if (!step()) rest(role);
    }
  } catch (const JobFailure& failure) {
    adopt(failure);
    fail();
  } catch (const std::exception& error) {
    set_failure(error);
    fail();
  }
  {
    const std::lock_guard lock(question_mutex_);
    no_more_questions_ = true;
  }
  question_changed_.notify_all();
  fail_everything(shut_down());
  over_ = true;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  failure_changed_.notify_all();
  report_changed_.notify_all();
  groups_.clear();
  if (bells_ != nullptr) bells_->of(topology_.rank).life.end();
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
  if (!postponed_.empty()) {
    for (Queued& queued : std::exchange(postponed_, {})) admit(std::move(queued));
  }
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
  if (now.active) look_around();
  Rest how = Rest::kAsleep;
  std::chrono::nanoseconds limit = now.wakes && !now.watching ? kIdleLookWithBells : kIdleLook;
  if (now.active) {
    how = Rest::kNapping;
    limit = backoff_.nap_length(now.wakes ? kLongestNapWithBells : Backoff::kLongestNap);
  } else {
    backoff_.reset();
    ++statistics_.idle_wakeups;
  }
  if (!asking_.empty()) limit = std::min<std::chrono::nanoseconds>(limit, kPatienceWithInterpreter);
  const std::uint32_t heard = doorbell_.lie_down(how);
  if (!step()) {
    role.unlock();
    doorbell_.sleep(how, heard, limit);
    role.lock();
  }
  doorbell_.get_up();
}

// While something is under way and nothing moves.
void Engine::look_around() {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookAround;
  for (auto& [id, group] : groups_) group->look(now);
  for (auto& group : closing_) group->look(now);
}

// Without the mutex, for which the program's threads would have to wait, unless there is something to take: whoever
// changes what it guards rings afterwards, or counts in `quiet_`.
void Engine::take_in_queue() {
  const std::uint32_t rings = doorbell_.rings();
  const std::uint32_t quiet = quiet_.load(std::memory_order_acquire);
  if (rings == rings_taken_ && quiet == quiet_taken_ && !leave_taken_) {
    if (!asking_.empty()) take_in_questions();
    return;
  }
  std::vector<Queued> queue;
  bool questions = false;
  std::optional<std::int64_t> threshold;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw JobFailure(*failure_, failure_agreed_);
    queue.swap(queue_);
    leave_taken_ = leaving_;
    questions = std::exchange(has_questions_, false);
    threshold = std::exchange(new_fusion_threshold_, std::nullopt);
  }
  rings_taken_ = rings;
  quiet_taken_ = quiet;
  for (Queued& queued : queue) admit(std::move(queued));
  if (questions || !asking_.empty()) take_in_questions();
  for (auto& [id, group] : groups_) {
    if (leave_taken_ && !group->leaving()) group->leave();
    if (threshold) group->set_fusion_threshold(*threshold);
  }
}

void Engine::admit(Queued queued) {
  if (queued.after != nullptr && !queued.after->done()) {
    postponed_.push_back(std::move(queued));
    return;
  }
  const auto group = groups_.find(queued.group);
  if (group != groups_.end()) {
    group->second->submit(std::move(queued.submission));
  } else {
    const Error error(ErrorKind::kPrecondition, "process set " + std::to_string(queued.group) + " was removed");
    on_finished(queued.group, queued.submission, Result(), &error);
  }
}

bool Engine::ended() {
  if (!leave_taken_) return false;
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

void Engine::on_finished(int, Submission& submission, Result result, const Error* error) {
  if (error == nullptr) note_done(submission.request);
  if (error != nullptr) {
    submission.work->fail(*error);
  } else {
    submission.work->finish(std::move(result));
  }
}

// Ranks have made unequal numbers of calls when all have joined, and begin to count anew: once, since a thread that
// goes on may call again before another one learns that its join has ended.
void Engine::on_all_joined(int group) {
  const std::lock_guard lock(mutex_);
  const auto set = sets_.find(group);
  if (set != sets_.end()) std::ranges::fill(set->second.counters, 0);
}

void Engine::say(const std::string& line) { options_.say(line); }

}  // namespace sirtaki
