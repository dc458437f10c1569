// The one engine of this process, which all frameworks in it share.
#include <pybind11/stl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <variant>

#include "bindings.h"
#include "fork.h"
#include "outside.h"
#include "plane/mpi.h"
#include "plane/point_to_point.h"
#include "plane/shm.h"
#include "plane/two_level.h"
#include "transport/mpi.h"
#include "transport/mpi_session.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// The process-wide engine lives here, at the border; the core itself has no globals.
struct Process {
  std::mutex mutex;  // who makes and ends engines
  std::mutex engine_mutex;
  std::shared_ptr<Engine> engine;
  std::unique_ptr<Outside> outside;
  bool failed = false;                  // the last job
  std::unique_ptr<MpiSession> session;  // outlives engines: MPI can be initialised only once
};

Process& process() {
  static auto* const instance = new Process;  // kept until the process is gone, since other threads may still be here
  return *instance;
}

std::shared_ptr<Engine> find_engine() {
  if (is_forked_child()) return process().engine;  // another thread may have held the mutex when this process began
  const std::lock_guard lock(process().engine_mutex);
  return process().engine;
}

void set_engine(std::shared_ptr<Engine> engine) {
  const std::lock_guard lock(process().engine_mutex);
  process().engine.swap(engine);
}

constexpr std::chrono::seconds kPatienceWithStarter{3};
constexpr const char* kNotInitialized = "Sirtaki has not been initialized; use init().";

// The exception types are Horovod's: a question about ranks is a ValueError, a collective an internal error.
std::shared_ptr<Engine> engine_to_ask() {
  auto engine = find_engine();
  if (engine == nullptr) throw Error(ErrorKind::kInvalidArgument, kNotInitialized);
  return engine;
}

// For what another thread of the engine may be changing.
std::shared_ptr<Engine> engine_to_look_into() {
  refuse_forked_child();
  return engine_to_ask();
}

}  // namespace

std::shared_ptr<Engine> engine_to_use() {
  refuse_forked_child();
  auto engine = find_engine();
  if (engine == nullptr) throw Error(ErrorKind::kPrecondition, kNotInitialized);
  return engine;
}

namespace {

std::unique_ptr<DataPlane> make_mpi_plane_on(Transport& transport) {
  return make_mpi_plane(dynamic_cast<const MpiTransport&>(transport.base()));
}

// Null, and no reason, where no ranks share a host.
std::unique_ptr<DataPlane> make_plane_of_hosts(Transport& transport, const std::vector<int>& hosts, std::string& why) {
  if (has_two_levels(hosts)) return make_two_level_plane(transport, hosts, make_mpi_plane_on, why);
  const bool one_host = std::ranges::count(hosts, hosts.front()) == std::ssize(hosts);
  return one_host && hosts.size() > 1 ? make_shm_plane(transport, why) : nullptr;
}

// Null where the group cannot be divided by hosts.
std::unique_ptr<HostLevels> make_levels(Transport& transport, const std::vector<int>& hosts,
                                        const std::function<void(const std::string&)>& tell) {
  std::string why;
  auto levels = make_host_levels(transport, hosts, why);
  if (!why.empty() && transport.rank() == 0) tell("SIRTAKI_HIERARCHICAL_ALLREDUCE=1 is without effect: " + why);
  if (levels == nullptr) return nullptr;
  levels->rail_planes.push_back(make_mpi_plane_on(*levels->rail));
  const MpiCommunicator& mpi = dynamic_cast<const MpiTransport&>(levels->rail->base()).communicator();
  if (mpi.mpi().takes_gpu_memory()) levels->rail_mpi = &mpi;
  return levels;
}

// Shared memory where ranks share hosts and there is enough of it, then MPI, then what always works; on GPUs, their
// own.
DataPlanes make_planes(Transport& transport, const std::vector<int>& hosts, const Settings& settings,
                       const std::function<void(const std::string&)>& tell, GpuOptions gpus) {
  DataPlanes planes;
  if (settings.shared_memory) {
    std::string why;
    if (auto plane = make_plane_of_hosts(transport, hosts, why)) planes.push_back(std::move(plane));
    if (!why.empty() && transport.rank() == 0) tell("no shared memory, so data goes through MPI: " + why);
  }
  planes.push_back(make_mpi_plane_on(transport));
  planes.push_back(make_point_to_point_plane(transport));
  std::vector<DataPlane*> host_planes;
  for (const auto& plane : planes) host_planes.push_back(plane.get());
  const MpiCommunicator& mpi = dynamic_cast<const MpiTransport&>(transport.base()).communicator();
  if (mpi.mpi().takes_gpu_memory()) gpus.mpi = &mpi;
  if (settings.hierarchical_allreduce) gpus.levels = make_levels(transport, hosts, tell);
  planes.push_back(make_gpu_plane(transport, std::move(host_planes), std::move(gpus)));
  return planes;
}

void say(int rank, bool with_time, const std::string& line) {
  const std::string text = "sirtaki: " + (with_time ? time_of_day(wall_clock()) + " " : "") + "[rank " +
                           std::to_string(rank) + "] " + line + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody to tell
}

MpiCommunicator base_communicator(const MpiSession& session, std::uint64_t comm_handle, const std::vector<int>& ranks) {
  if (comm_handle != 0) return session.duplicate(comm_handle);
  return ranks.empty() ? session.world() : session.of_ranks(ranks);
}

void init(const std::vector<std::string>& mpi_libraries, std::uint64_t comm_handle, const std::vector<int>& comm_ranks,
          const std::string& program, int launcher) {
  refuse_forked_child();
  const std::lock_guard lock(process().mutex);
  if (process().engine != nullptr) return;
  EngineOptions options;
  options.settings = Settings::from_environment();
  options.program = program;
  const bool takes_usr1 = signal_is_free(SIGUSR1);
  if (process().session == nullptr) {
    const auto threads = options.settings.mpi_threads ? MpiThreads::kMultiple : MpiThreads::kSerialized;
    process().session = std::make_unique<MpiSession>(load_mpi(mpi_libraries), threads);
  }
  auto transport = std::make_unique<MpiTransport>(base_communicator(*process().session, comm_handle, comm_ranks));
  options.say = [rank = transport->rank(), settings = options.settings](const std::string& line) {
    if (settings.says_warnings) say(rank, settings.says_time, line);
  };
  // Every group, and every lane of one, would say the same.
  const auto tell_once = [tell = options.say, told = std::make_shared<bool>(false)](const std::string& line) {
    if (!std::exchange(*told, true)) tell(line);
  };
  options.make_planes = [tell = options.say, tell_once, settings = options.settings](Transport& group,
                                                                                     const std::vector<int>& hosts) {
    GpuOptions gpus = gpu_options(settings, tell, [] { return engine_to_use()->topology().local_rank; });
    return make_planes(group, hosts, settings, tell_once, std::move(gpus));
  };
  options.stacks_by_force = stacks_by_force;
  set_engine(std::make_shared<Engine>(std::move(options), std::move(transport)));
  process().outside = std::make_unique<Outside>(find_engine(), launcher, takes_usr1);
  watch_forks();
}

using Fields = std::map<std::string, std::variant<std::string, std::int64_t, double>>;

Fields fields_of(const Cause& cause) {
  return {{"kind", std::string(name_of(cause.kind))},
          {"rank", std::int64_t{cause.rank}},
          {"host", cause.host},
          {"text", cause.text},
          {"time", cause.time},
          {"site", cause.site},
          {"witness", std::int64_t{cause.witness}},
          {"description", cause.describe()}};
}

// Why the job has failed, before that or meanwhile.
std::optional<Fields> shutdown() {
  const auto engine = find_engine();
  if (engine == nullptr || is_forked_child()) return std::nullopt;
  engine->shutdown();
  const std::lock_guard lock(process().mutex);
  const std::optional<Cause> cause = engine->cause();
  process().failed = !engine->failure().empty();
  process().outside.reset();
  set_engine(nullptr);
  return cause ? std::optional(fields_of(*cause)) : std::nullopt;
}

// A rank whose program ended well in a job that failed. If it left first, its exit code would be the job's.
void let_others_leave_first(int status, void*) {
  if (status != 0) return;
  std::this_thread::sleep_for(kPatienceWithStarter);
  _exit(1);
}

// At the end of the process, after shutdown(). All ranks must come to it, so that a failed job does without.
// `supervised`: somebody else sees to the job's exit code.
void finalize(bool supervised) {
  if (is_forked_child()) return;
  const std::lock_guard lock(process().mutex);
  if (process().failed) {
    if (!supervised) on_exit(&let_others_leave_first, nullptr);
    return;
  }
  if (process().session != nullptr && process().engine == nullptr) process().session->finalize();
}

void abort_job(int exit_code) {
  const auto engine = find_engine();
  if (engine != nullptr && !is_forked_child()) {
    engine->abort_job(exit_code);
    // MPI_Abort may return before the starter has acted on it. A process that left at once was seen to make MPICH's
    // mpiexec miss the message and the death alike, so that the other ranks lived on.
    std::this_thread::sleep_for(kPatienceWithStarter);
  }
  _exit(exit_code);
}

Fields fail_job(const std::string& kind, const std::string& text, const std::string& site) {
  Cause cause;
  cause.kind = cause_kind_of(kind);
  cause.text = text;
  cause.site = site;
  return fields_of(engine_to_ask()->fail_job(std::move(cause)));
}

std::map<std::string, std::string> mpi_info(const std::vector<std::string>& paths) {
  refuse_forked_child();
  const std::lock_guard lock(process().mutex);
  return describe(process().session != nullptr ? process().session->library() : *load_mpi(paths));
}

template <class Enum>
Enum to_enum(int value, int count, const char* what) {
  if (value < 0 || value >= count) {
    throw Error(ErrorKind::kInvalidArgument, std::string("unknown ") + what + " number " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

}  // namespace

std::vector<Address> take_tensors(const std::vector<PyTensor>& tensors, Request& request) {
  std::vector<TensorSpec> specs;
  std::vector<Address> addresses;
  for (const auto& [in, out, dtype, shape, device] : tensors) {
    specs.push_back({to_enum<DType>(dtype, kDTypeCount, "dtype"), device, shape});
    addresses.push_back({reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out)});
  }
  request.tensors = TensorSpecs(std::move(specs));
  return addresses;
}

EventPtr ready_on(const Request& request, std::uintptr_t stream) {
  Device& device = gpu(request.tensors[0].device);
  if (device.is_capturing(reinterpret_cast<Stream>(stream))) {
    throw Error(ErrorKind::kPrecondition,
                std::string(name_of(request.verb)) + " '" + request.name +
                    "': the current stream is being captured into a CUDA graph, in which ranks cannot agree on "
                    "anything. Call it outside the capture.");
  }
  return device.record(reinterpret_cast<Stream>(stream));
}

namespace {

// The function is kept alive by the work until that is done. It runs on the engine's thread.
Allocate allocation_by(const py::object& function) {
  if (function.is_none()) return nullptr;
  return [function = function.ptr()](std::size_t tensor, const Shape& shape, Stream stream) -> void* {
    stay_out_of_ending_interpreter();
    const py::gil_scoped_acquire acquire;
    try {
      const auto address =
          py::handle(function)(tensor, py::tuple(py::cast(shape)), reinterpret_cast<std::uintptr_t>(stream));
      return reinterpret_cast<void*>(address.cast<std::uintptr_t>());
    } catch (const py::error_already_set& error) {
      throw Error(ErrorKind::kAborted, std::string("no memory for the result: ") + error.what());
    }
  };
}

py::object submit(int verb, std::string name, const std::vector<PyTensor>& tensors, int op, double prescale,
                  double postscale, int root, std::vector<std::int64_t> splits, int process_set, std::string site,
                  bool awaited, py::object keep, std::uintptr_t stream, const py::object& allocate) {
  auto engine = engine_to_use();
  Request request;
  request.name = std::move(name);
  request.verb = to_enum<Verb>(verb, kVerbCount, "collective");
  request.op = to_enum<ReduceOp>(op, kReduceOpCount, "op");
  request.prescale = prescale;
  request.postscale = postscale;
  request.root = root;
  request.splits = std::move(splits);
  request.site = std::move(site);
  std::vector<Address> addresses = take_tensors(tensors, request);
  const bool on_gpu = !request.tensors.empty() && request.tensors[0].device != kHostDevice;
  EventPtr ready = on_gpu ? ready_on(request, stream) : nullptr;
  auto work = awaited ? engine->submit_quietly(process_set, std::move(request), std::move(addresses),
                                               allocation_by(allocate), std::move(ready))
                      : engine->submit(process_set, std::move(request), std::move(addresses), allocation_by(allocate),
                                       std::move(ready));
  if (!allocate.is_none()) keep = py::make_tuple(std::move(keep), allocate);
  return wrap_work(std::move(work), std::move(engine), std::move(keep), on_gpu ? std::optional(stream) : std::nullopt);
}

bool question() {
  const auto engine = find_engine();
  if (engine == nullptr || is_forked_child()) return false;
  const py::gil_scoped_release release;
  const bool asked = engine->wait_for_question();
  stay_out_of_ending_interpreter();
  return asked;
}

py::dict statistics() {
  const auto engine = engine_to_ask();
  const Statistics& s = engine->statistics();
  py::dict result;
  result["batches"] = s.batches.load();
  result["tensors"] = s.tensors.load();
  result["bytes"] = s.bytes.load();
  result["messages"] = s.messages.load();
  result["cache_hits"] = s.cache_hits.load();
  result["cache_misses"] = s.cache_misses.load();
  result["idle_wakeups"] = s.idle_wakeups.load();
  result["planned_batches"] = s.planned_batches.load();
  result["plans"] = s.plans.load();
  result["departures"] = s.departures.load();
  result["wait_cpu_ns"] = s.wait_cpu_ns.load();
  return result;
}

template <int Topology::* member>
int topology() {
  return engine_to_ask()->topology().*member;
}

}  // namespace

void bind_engine(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("init", &init, py::arg("mpi_libraries"), py::arg("comm_handle") = 0,
             py::arg("comm_ranks") = std::vector<int>(), py::arg("identity") = "", py::arg("launcher") = -1, Release());
  module.def("start_timeout", [] { return Settings::from_environment().start_timeout_seconds; });
  module.def("shutdown", &shutdown, Release());
  module.def("finalize", &finalize, py::arg("supervised"), Release());
  module.def("fail", &fail_job, py::arg("kind"), py::arg("text"), py::arg("site") = "", Release());
  module.def("cause", [] {
    const std::optional<Cause> cause = engine_to_ask()->cause();
    return cause ? std::optional(fields_of(*cause)) : std::nullopt;
  });
  module.def("abort", &abort_job, py::arg("exit_code"), Release());
  module.def("is_initialized", [] { return find_engine() != nullptr; });
  module.def("rank", &topology<&Topology::rank>);
  module.def("size", &topology<&Topology::size>);
  module.def("local_rank", &topology<&Topology::local_rank>);
  module.def("local_size", &topology<&Topology::local_size>);
  module.def("cross_rank", &topology<&Topology::cross_rank>);
  module.def("cross_size", &topology<&Topology::cross_size>);
  module.def("is_homogeneous", [] { return engine_to_ask()->topology().homogeneous; });
  module.def("mpi_threads_supported", [] {
    engine_to_ask();
    return process().session->multiple_threads();
  });
  module.def("process_sets", [] { return engine_to_look_into()->process_sets(); });
  module.def("failure", [] { return engine_to_look_into()->failure(); });
  module.def("submit", &submit, py::arg("verb"), py::arg("name"), py::arg("tensors"), py::arg("op") = 1,
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = -1,
             py::arg("splits") = std::vector<std::int64_t>(), py::arg("process_set") = 0, py::arg("site") = "",
             py::arg("awaited") = false, py::arg("keep") = py::none(), py::arg("stream") = 0,
             py::arg("allocate") = py::none());
  module.def("mpi_info", &mpi_info, py::arg("paths"));
  module.def("statistics", &statistics);
  module.def("time_waits", [] { engine_to_ask()->time_waits(); });
  module.def("plane_uses", [] { return engine_to_look_into()->plane_uses(); });
  module.def("control", [] { return engine_to_ask()->control(); });
  module.def("question", &question);
  module.def("answer", [](const std::string& stacks) { engine_to_look_into()->answer(stacks); });
  module.def("set_fusion_threshold", [](std::int64_t bytes) { engine_to_look_into()->set_fusion_threshold(bytes); });
}

}  // namespace sirtaki
