// The engine's functions for Python: they convert arguments and call the core.
#include <pybind11/stl.h>

#include <variant>

#include "bindings.h"
#include "fork.h"
#include "process.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// Address to read, address to write, dtype number, shape, device.
using PyTensor = std::tuple<std::uintptr_t, std::uintptr_t, int, Shape, int>;

void init(std::vector<std::string> mpi_libraries, std::uint64_t comm_handle, std::vector<int> comm_ranks,
          std::string program, int launcher) {
  start_engine({std::move(mpi_libraries), comm_handle, std::move(comm_ranks), {}, std::move(program), launcher});
}

void init_over_sockets(int rank, const std::vector<std::pair<std::string, int>>& addresses, const std::string& key,
                       int listener, std::uint32_t generation, std::string program, int launcher) {
  MeshOptions mesh;
  mesh.rank = rank;
  for (const auto& [host, port] : addresses) mesh.addresses.push_back({host, port});
  const auto bytes = std::as_bytes(std::span(key));
  mesh.key.assign(bytes.begin(), bytes.end());
  mesh.listener = Descriptor(listener);
  mesh.generation = generation;
  mesh.silence = std::chrono::seconds(Settings::from_environment().silence_seconds);
  StartOptions start;
  start.mesh = std::move(mesh);
  start.program = std::move(program);
  start.launcher = launcher;
  start_engine(std::move(start));
}

using Fields = std::map<std::string, std::variant<std::string, std::int64_t, double>>;

Fields fields_of(const FailureCause& cause) {
  return {{"kind", std::string(name_of(cause.kind))},
          {"rank", std::int64_t{cause.rank}},
          {"host", cause.host},
          {"text", cause.text},
          {"time", cause.time},
          {"site", cause.site},
          {"witness", std::int64_t{cause.witness}},
          {"description", cause.describe()}};
}

// The failure cause if the job has failed, before or during shutdown.
std::optional<Fields> shutdown() {
  const std::optional<FailureCause> cause = end_engine();
  return cause ? std::optional(fields_of(*cause)) : std::nullopt;
}

Fields fail_job(const std::string& kind, const std::string& text, const std::string& site) {
  FailureCause cause;
  cause.kind = failure_kind_of(kind);
  cause.text = text;
  cause.site = site;
  return fields_of(engine_for_constants()->fail_job(std::move(cause)));
}

}  // namespace

RequestBuilder::RequestBuilder(int verb, std::string name, int op, double prescale, double postscale, std::string site,
                               int root, std::vector<std::int64_t> splits) {
  request.name = std::move(name);
  request.verb = to_enum<Verb>(verb, kVerbCount, "collective");
  request.op = to_enum<ReduceOp>(op, kReduceOpCount, "op");
  request.prescale = prescale;
  request.postscale = postscale;
  request.root = root;
  request.splits = std::move(splits);
  request.site = std::move(site);
}

void RequestBuilder::add(int dtype, int device, Shape shape, Address address) {
  add({to_enum<DType>(dtype, kDTypeCount, "dtype"), device, std::move(shape)}, address);
}

void RequestBuilder::add(TensorSpec spec, Address address) {
  specs.push_back(std::move(spec));
  addresses.push_back(address);
}

Submission RequestBuilder::submission(Allocate allocate, EventPtr ready) {
  request.tensors = TensorSpecs(std::move(specs));
  return {std::move(request), std::move(addresses), std::move(allocate), std::move(ready)};
}

EventPtr ready_on(const Request& request, int number, std::uintptr_t stream) {
  Device& device = gpu(number);
  if (device.is_capturing(reinterpret_cast<Stream>(stream))) {
    throw Error(ErrorKind::kPrecondition,
                std::string(name_of(request.verb)) + " '" + request.name +
                    "': the current stream is being captured into a CUDA graph, in which ranks cannot agree on "
                    "anything. Call it outside the capture.");
  }
  return device.record(reinterpret_cast<Stream>(stream));
}

namespace {

// The work keeps the function alive until it is done. The function runs on the engine's thread.
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
                  bool awaited, py::object keep, std::uintptr_t stream, const py::object& allocate,
                  const std::vector<std::int64_t>& rooms, int tag) {
  auto engine = engine_for_collective();
  RequestBuilder builder(verb, std::move(name), op, prescale, postscale, std::move(site), root, std::move(splits));
  builder.request.tag = tag;
  for (const auto& [in, out, dtype, shape, device] : tensors) {
    builder.add(dtype, device, shape, {reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out)});
  }
  for (std::size_t i = 0; i < rooms.size(); ++i) builder.addresses.at(i).room = rooms[i];
  const int device = builder.device();
  const bool on_gpu = device != kHostDevice;
  EventPtr ready = on_gpu ? ready_on(builder.request, device, stream) : nullptr;
  auto work = engine->queue().put(process_set, builder.submission(allocation_by(allocate), std::move(ready)),
                                  awaited ? WakeUp::kByCaller : WakeUp::kSoon);
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
  const auto engine = engine_for_constants();
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
  return engine_for_constants()->topology().*member;
}

}  // namespace

void bind_engine(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("init", &init, py::arg("mpi_libraries"), py::arg("comm_handle") = 0,
             py::arg("comm_ranks") = std::vector<int>(), py::arg("identity") = "", py::arg("launcher") = -1, Release());
  module.def(
      "init_over_sockets",
      [](int rank, const std::vector<std::pair<std::string, int>>& addresses, const py::bytes& key, int listener,
         std::uint32_t generation, std::string identity, int launcher) {
        const std::string secret = key;
        const py::gil_scoped_release release;
        init_over_sockets(rank, addresses, secret, listener, generation, std::move(identity), launcher);
      },
      py::arg("rank"), py::arg("addresses"), py::arg("key"), py::arg("listener"), py::arg("generation"),
      py::arg("identity"), py::arg("launcher") = -1);
  module.def("start_timeout", [] { return Settings::from_environment().start_timeout_seconds; });
  module.def("shutdown", &shutdown, Release());
  module.def("finalize", &finalize, py::arg("supervised"), Release());
  module.def("fail", &fail_job, py::arg("kind"), py::arg("text"), py::arg("site") = "", Release());
  module.def("cause", [] {
    const std::optional<FailureCause> cause = engine_for_constants()->cause();
    return cause ? std::optional(fields_of(*cause)) : std::nullopt;
  });
  module.def("take_notice", &take_notice);
  module.def("abort", &abort_job, py::arg("exit_code"), Release());
  module.def("is_initialized", [] { return find_engine() != nullptr; });
  module.def("rank", &topology<&Topology::rank>);
  module.def("size", &topology<&Topology::size>);
  module.def("local_rank", &topology<&Topology::local_rank>);
  module.def("local_size", &topology<&Topology::local_size>);
  module.def("cross_rank", &topology<&Topology::cross_rank>);
  module.def("cross_size", &topology<&Topology::cross_size>);
  module.def("is_homogeneous", [] { return engine_for_constants()->topology().homogeneous; });
  module.def("uses_mpi", &uses_mpi);
  module.def("mpi_threads_supported", &mpi_threads_supported);
  module.def("process_sets", [] { return engine_for_query()->process_sets(); });
  module.def("failure", [] { return engine_for_query()->failure(); });
  module.def("submit", &submit, py::arg("verb"), py::arg("name"), py::arg("tensors"), py::arg("op") = 1,
             py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = -1,
             py::arg("splits") = std::vector<std::int64_t>(), py::arg("process_set") = 0, py::arg("site") = "",
             py::arg("awaited") = false, py::arg("keep") = py::none(), py::arg("stream") = 0,
             py::arg("allocate") = py::none(), py::arg("rooms") = std::vector<std::int64_t>(), py::arg("tag") = 0);
  module.attr("LARGE_BLOCK") = kLargeBlock;
  module.def("new_buffer", [](std::size_t bytes) { return HostBuffer(bytes); }, py::arg("bytes"));
  module.def("mpi_info", &mpi_info, py::arg("paths"));
  module.def("statistics", &statistics);
  module.def("end_step", [] {
    if (const auto engine = find_engine()) end_step(*engine);
  });
  module.def("time_waits", [] { engine_for_constants()->time_waits(); });
  module.def("plane_uses", [] { return engine_for_query()->statistics().plane_uses(); });
  module.def("control", [] { return engine_for_constants()->control(); });
  module.def("question", &question);
  module.def("answer", [](const std::string& stacks) { engine_for_query()->answer(stacks); });
  module.def("set_fusion_threshold", [](std::int64_t bytes) { engine_for_query()->set_fusion_threshold(bytes); });
}

}  // namespace sirtaki
