// Calls with one tensor in host memory, the usual case of every verb, without a line of Python between the tensor and
// the queue. All others, and all wrong ones, are described by Python (frameworks/sirtaki/torch/ops/tensors.py).
#include <optional>
#include <string>
#include <utility>

#include "core/bindings.h"
#include "core/process.h"
#include "tensor_maker.h"
#include "tensor_reader.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// How the core sends this tensor as it lies in host memory; nothing if it cannot.
std::optional<TensorSpec> plain_spec(TensorReader& reader, PyObject* object) {
  if (!reader.read(object) || is_lazy(object, reader.tensor())) return std::nullopt;
  const dlpack::Tensor& tensor = reader.tensor();
  if (tensor.dtype.code == dlpack::kComplex || tensor.device.kind != dlpack::kHost) return std::nullopt;
  std::optional<TensorSpec> spec = spec_of(tensor);
  const auto dimensions = static_cast<std::size_t>(tensor.dimensions);
  if (spec && !std::equal(spec->shape.begin(), spec->shape.end(), tensor.shape, tensor.shape + dimensions)) return {};
  return spec;
}

std::size_t bytes_of(const TensorSpec& spec) {
  return static_cast<std::size_t>(element_count(spec.shape)) * size_of(spec.dtype);
}

// May the result of this verb be written to memory that is described so?
bool fits(Verb verb, const TensorSpec& in, const TensorSpec& out) {
  if (in.dtype != out.dtype || in.shape.size() != out.shape.size()) return false;
  const std::ptrdiff_t first = changes_shape(verb) ? 1 : 0;
  return std::equal(in.shape.begin() + first, in.shape.end(), out.shape.begin() + first);
}

// The memory of the result: given, or made if its size is known; else null. False if it cannot be used.
bool add_output(Verb verb, const TensorSpec& spec, PyObject* tensor, py::object& out, Address& address) {
  if (out.is_none()) {
    if (!can_make_like(tensor)) return false;
    if (changes_shape(verb)) return true;
    HostBuffer memory(bytes_of(spec));
    address.out = memory.data();
    out = tensor_over(std::move(memory), spec.shape, tensor);
    return true;
  }
  if (out.ptr() == tensor) {
    address.out = const_cast<void*>(address.in);
    return !changes_shape(verb);
  }
  TensorReader reader;
  const std::optional<TensorSpec> given = plain_spec(reader, out.ptr());
  if (!given || !fits(verb, spec, *given)) return false;
  address.out = reader.data();
  if (changes_shape(verb)) address.room = static_cast<std::int64_t>(bytes_of(*given));
  return true;
}

// None if Python must describe the tensors. With `awaited`: waits, and returns the result.
py::object start_call(int verb, const py::object& tensor, py::object out, const std::string& name, int op,
                      double prescale, double postscale, int root, int process_set, std::string site, bool awaited,
                      int tag) {
  TensorReader reader;
  std::optional<TensorSpec> spec = plain_spec(reader, tensor.ptr());
  if (!spec) return py::none();
  RequestBuilder builder(verb, {}, op, prescale, postscale, std::move(site), root);
  Request& request = builder.request;
  request.tag = tag;
  if (changes_shape(request.verb) && spec->shape.empty()) return py::none();
  Address address{.in = reader.data()};
  if (!add_output(request.verb, *spec, tensor.ptr(), out, address)) return py::none();
  if (!name.empty()) request.name = std::string(name_of(request.verb)) + "." + name;
  builder.add(std::move(*spec), address);
  auto engine = engine_for_collective();
  auto work = engine->queue().put(process_set, builder.submission(nullptr, nullptr),
                                  awaited ? WakeUp::kByCaller : WakeUp::kSoon);
  Work& started = *work;
  py::object wrapped = wrap_work(std::move(work), std::move(engine), py::make_tuple(tensor, out), std::nullopt);
  if (!awaited) return wrapped;
  wait_for(wrapped, std::nullopt);
  if (!out.is_none()) return out;
  Result& result = started.result();
  return tensor_over(std::move(result.buffers.at(0)), result.shapes.at(0), tensor.ptr());
}

}  // namespace

void bind_tensor_calls(py::module_& module) { module.def("start_call", &start_call); }

}  // namespace sirtaki
