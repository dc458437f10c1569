// NCCL on the caller's stream, without the engine. For steps captured into a graph, during which ranks cannot vote.
// The ranks must agree on the calls and their order before the capture.
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "core/bindings.h"
#include "plane/gpu/gpu_capabilities.h"
#include "plane/nccl/nccl.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

using PyCard = std::tuple<std::string, std::string, std::string, std::string>;
using PyTensor = std::tuple<std::uintptr_t, std::uintptr_t, int, Shape, int>;

void finish(Task task) {
  while (!task.advance()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// Has its own communicator. For one thread at a time.
class DirectNccl {
 public:
  DirectNccl(const std::string& id, int rank, int size, int device, std::uintptr_t stream, bool kernels) : size_(size) {
    std::string why;
    auto library = find_nccl(why);
    if (library == nullptr) throw Error(ErrorKind::kPrecondition, "no NCCL: " + why);
    NcclMembers members{rank, size, {}, kernels};
    std::memcpy(members.id.bytes, id.data(), std::min(id.size(), sizeof(members.id.bytes)));
    nccl_ =
        std::make_unique<NcclCollectives>(std::move(library), gpu(device), reinterpret_cast<Stream>(stream), members);
    finish(nccl_->connect());
  }

  // In place, one batch for each dtype; queued on the stream. `wire`: the wire dtype for sums of floats, -1 for their
  // own dtype.
  void allreduce(const std::vector<PyTensor>& tensors, int op, double prescale, double postscale, int wire) {
    std::map<DType, std::vector<Segment>> kinds;
    for (const auto& [in, out, dtype, shape, device] : tensors) {
      kinds[static_cast<DType>(dtype)].push_back(
          {reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), element_count(shape)});
    }
    for (const auto& [dtype, segments] : kinds) {
      const Reduction reduction = reduction_of(dtype, op, prescale, postscale);
      finish(nccl_->allreduce(reduction, segments, wire < 0 ? std::nullopt : std::optional(static_cast<DType>(wire))));
    }
  }

  // Reads a tensor with one row for each rank, and writes this rank's reduced row.
  void reducescatter(const PyTensor& tensor, int op, double prescale, double postscale) {
    const auto& [in, out, dtype, shape, device] = tensor;
    const std::vector<std::int64_t> counts = rows_of(element_count(shape));
    const Spread spread{reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), counts};
    finish(nccl_->reducescatter(reduction_of(static_cast<DType>(dtype), op, prescale, postscale), spread));
  }

  // Reads this rank's row, and writes a tensor with one row for each rank; `tensor` describes the latter.
  void allgather(const PyTensor& tensor) {
    const auto& [in, out, dtype, shape, device] = tensor;
    const std::vector<std::int64_t> counts = rows_of(element_count(shape));
    const Spread spread{reinterpret_cast<const void*>(in), reinterpret_cast<void*>(out), counts};
    finish(nccl_->allgather(size_of(static_cast<DType>(dtype)), spread));
  }

  void check() { nccl_->check_queued(); }

 private:
  Reduction reduction_of(DType dtype, int op, double prescale, double postscale) const {
    const auto asked = static_cast<ReduceOp>(op);
    const bool averages = asked == ReduceOp::kAverage;
    const Reduction reduction{dtype, averages ? ReduceOp::kSum : asked, prescale, postscale, averages ? size_ : 1};
    if (!nccl_->can_reduce(reduction)) {
      throw Error(ErrorKind::kPrecondition,
                  "NCCL alone cannot reduce " + std::string(name_of(dtype)) + " with " + std::string(name_of(asked)));
    }
    return reduction;
  }

  std::vector<std::int64_t> rows_of(std::int64_t elements) const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(size_), elements / size_);
  }

  int size_;
  std::unique_ptr<NcclCollectives> nccl_;
};

PyCard card_of(int device) {
  std::string why;
  const auto library = find_nccl(why);
  return {gpu(device).identity(), library != nullptr ? library->version : "", why, gpu(device).lacks_kernels()};
}

py::bytes unique_id() {
  std::string why;
  const auto library = find_nccl(why);
  if (library == nullptr) throw Error(ErrorKind::kPrecondition, "no NCCL: " + why);
  NcclUniqueId id{};
  library->check(library->calls.GetUniqueId(&id), "ncclGetUniqueId");
  return {id.bytes, sizeof(id.bytes)};
}

// (whether the ranks may use NCCL, whether all GPUs have kernels, the reason if not)
std::tuple<bool, bool, std::string> agree_on_cards(const std::vector<PyCard>& cards) {
  std::vector<GpuCard> converted;
  for (const auto& [identity, nccl, lacks_nccl, lacks_kernels] : cards) {
    converted.push_back({identity, nccl, lacks_nccl, lacks_kernels, false});
  }
  const GpuCapabilities agreement = common_gpu_capabilities(converted, "");
  return {agreement.nccl, agreement.kernels, agreement.why_not};
}

}  // namespace

void bind_gpu_direct(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("gpu_card", &card_of, py::arg("device"), Release());
  module.def("nccl_unique_id", &unique_id);
  module.def("common_gpu_capabilities", &agree_on_cards, py::arg("cards"));
  py::class_<DirectNccl>(module, "DirectNccl")
      .def(py::init<const std::string&, int, int, int, std::uintptr_t, bool>(), py::arg("id"), py::arg("rank"),
           py::arg("size"), py::arg("device"), py::arg("stream"), py::arg("kernels"), Release())
      .def("allreduce", &DirectNccl::allreduce, py::arg("tensors"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("wire") = -1, Release())
      .def("reducescatter", &DirectNccl::reducescatter, py::arg("tensor"), py::arg("op"), py::arg("prescale"),
           py::arg("postscale"), Release())
      .def("allgather", &DirectNccl::allgather, py::arg("tensor"), Release())
      .def("check", &DirectNccl::check);
}

}  // namespace sirtaki
