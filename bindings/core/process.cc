#include "process.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "bindings.h"
#include "fabric/mpi_fabric.h"
#include "fabric/socket_fabric.h"
#include "fork.h"
#include "mpi/mpi_session.h"
#include "recorder/step_watch.h"
#include "request_listener.h"

namespace sirtaki {
namespace {

struct Process {
  std::mutex mutex;  // held while an engine is made or ended
  std::mutex engine_mutex;
  std::shared_ptr<Engine> engine;
  std::unique_ptr<RequestListener> listener;
  bool failed = false;    // whether the last job failed
  bool uses_mpi = false;  // whether the last job used MPI
  // Never deleted: threads of the program may still write.
  std::atomic<FlightRecorder*> recorder{nullptr};
  std::atomic<StepWatch*> step_watch{nullptr};
  std::mutex notice_mutex;
  std::atomic<bool> has_notice{false};
  std::string notice;
  std::unique_ptr<MpiSession> session;  // outlives engines: MPI can be initialised only once
};

Process& process() {
  static auto* const instance = new Process;  // never destroyed: other threads may still use it
  return *instance;
}

void set_engine(std::shared_ptr<Engine> engine) {
  const std::lock_guard lock(process().engine_mutex);
  process().engine.swap(engine);
}

constexpr std::chrono::seconds kPatienceWithStarter{3};
constexpr const char* kNotInitialized = "Sirtaki has not been initialized; use init().";

void log(int rank, bool with_time, const std::string& line) {
  const std::string text = "sirtaki: " + (with_time ? time_of_day(wall_clock()) + " " : "") + "[rank " +
                           std::to_string(rank) + "] " + line + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // stderr is closed; nothing can be reported
}

MpiCommunicator base_communicator(const StartOptions& start, const Settings& settings) {
  if (process().session == nullptr) {
    const auto threads = settings.mpi_threads ? MpiThreads::kMultiple : MpiThreads::kSerialized;
    process().session = std::make_unique<MpiSession>(load_mpi(start.mpi_libraries), threads);
  }
  const MpiSession& session = *process().session;
  if (start.comm_handle != 0) return session.duplicate(start.comm_handle);
  return start.comm_ranks.empty() ? session.world() : session.of_ranks(start.comm_ranks);
}

PlaneOptions plane_options(const Settings& settings, const std::function<void(const std::string&)>& log) {
  return {.shared_memory = settings.shared_memory,
          .hierarchical_allreduce = settings.hierarchical_allreduce,
          .gpus = gpu_options(settings, log, [] { return engine_for_collective()->topology().local_rank; }),
          .log = log};
}

// Sets the log of `options`, whose lines begin with the rank.
std::unique_ptr<Fabric> make_world(StartOptions& start, EngineOptions& options) {
  const auto set_log = [&options](int rank) {
    options.log = [rank, settings = options.settings](const std::string& line) {
      if (settings.log_warnings) log(rank, settings.log_time, line);
    };
    return plane_options(options.settings, options.log);
  };
  process().uses_mpi = !start.mesh;
  if (start.mesh) {
    PlaneOptions planes = set_log(start.mesh->rank);
    return make_socket_fabric(std::move(*start.mesh), std::move(planes));
  }
  MpiCommunicator communicator = base_communicator(start, options.settings);
  PlaneOptions planes = set_log(communicator.rank());
  return make_mpi_fabric(std::move(communicator), std::move(planes));
}

void record(Engine& engine) {
  if (process().recorder == nullptr) {
    process().recorder = new FlightRecorder;
    process().step_watch = new StepWatch(*process().recorder);
  }
  process().step_watch.load()->restart();
  engine.observe(*process().recorder);
}

// For a rank whose program succeeded in a failed job. If it exited first, its exit code would become the job's.
void let_others_leave_first(int status, void*) {
  if (status != 0) return;
  std::this_thread::sleep_for(kPatienceWithStarter);
  _exit(1);
}

}  // namespace

std::shared_ptr<Engine> find_engine() {
  if (is_forked_child()) return process().engine;  // another thread may have held the mutex at the fork
  const std::lock_guard lock(process().engine_mutex);
  return process().engine;
}

std::shared_ptr<Engine> engine_for_constants() {
  auto engine = find_engine();
  if (engine == nullptr) throw Error(ErrorKind::kInvalidArgument, kNotInitialized);
  return engine;
}

std::shared_ptr<Engine> engine_for_query() {
  refuse_forked_child();
  return engine_for_constants();
}

std::shared_ptr<Engine> engine_for_collective() {
  refuse_forked_child();
  auto engine = find_engine();
  if (engine == nullptr) throw Error(ErrorKind::kPrecondition, kNotInitialized);
  return engine;
}

FlightRecorder* find_recorder() { return process().recorder; }

StepWatch* find_step_watch() { return process().step_watch; }

void end_step(Engine& engine) {
  engine.end_step();
  if (StepWatch* const watch = find_step_watch()) watch->take_in();
}

void start_engine(StartOptions start) {
  refuse_forked_child();
  const std::lock_guard lock(process().mutex);
  if (process().engine != nullptr) return;
  EngineOptions options;
  options.settings = Settings::from_environment();
  options.program = std::move(start.program);
  options.stacks_by_force = stacks_by_force;
  const bool takes_usr1 = signal_is_free(SIGUSR1);
  auto world = make_world(start, options);
  const bool records = options.settings.recorder;
  auto engine = std::make_shared<Engine>(std::move(options), std::move(world));
  if (records) record(*engine);
  set_engine(std::move(engine));
  process().listener = std::make_unique<RequestListener>(find_engine(), start.launcher, takes_usr1);
  watch_forks();
}

std::optional<FailureCause> end_engine() {
  const auto engine = find_engine();
  if (engine == nullptr || is_forked_child()) return std::nullopt;
  engine->shutdown();
  const std::lock_guard lock(process().mutex);
  const std::optional<FailureCause> cause = engine->cause();
  process().failed = !engine->failure().empty();
  process().listener.reset();
  set_engine(nullptr);
  return cause;
}

void finalize(bool supervised) {
  if (is_forked_child()) return;
  const std::lock_guard lock(process().mutex);
  if (process().failed) {
    if (!supervised) on_exit(&let_others_leave_first, nullptr);
    return;
  }
  if (process().session != nullptr && process().engine == nullptr) process().session->finalize();
}

void put_notice(std::string notice) {
  const std::lock_guard lock(process().notice_mutex);
  process().notice = std::move(notice);
  process().has_notice = true;
}

std::optional<std::string> take_notice() {
  if (!process().has_notice || is_forked_child()) return std::nullopt;
  const std::lock_guard lock(process().notice_mutex);
  process().has_notice = false;
  return std::move(process().notice);
}

void leave_connections_to_parent() {
  if (const auto engine = process().engine) engine->on_forked_child();
}

void abort_job(int exit_code) {
  const auto engine = find_engine();
  if (engine != nullptr && !is_forked_child()) {
    engine->abort_job(exit_code);
    // MPI_Abort may return before the starter has acted on it. If a process exits at once, MPICH's mpiexec can miss
    // both the message and the exit, and the other ranks live on.
    if (process().uses_mpi) std::this_thread::sleep_for(kPatienceWithStarter);
  }
  _exit(exit_code);
}

bool uses_mpi() {
  engine_for_constants();
  return process().uses_mpi;
}

bool mpi_threads_supported() { return uses_mpi() && process().session->multiple_threads(); }

std::map<std::string, std::string> mpi_info(const std::vector<std::string>& paths) {
  refuse_forked_child();
  const std::lock_guard lock(process().mutex);
  return describe(process().session != nullptr ? process().session->library() : *load_mpi(paths));
}

}  // namespace sirtaki
