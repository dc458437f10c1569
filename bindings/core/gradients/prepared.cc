#include "prepared.h"

#include <algorithm>

namespace sirtaki {
namespace {

namespace py = pybind11;

const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  const py::object capsule = py::getattr(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsule)) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
  while (api != nullptr && api->major != dlpack::kMajor) api = api->earlier;
  return api != nullptr && api->tensor_of != nullptr ? api : nullptr;
}

std::vector<std::int64_t> shape_and_strides(const dlpack::Tensor& tensor) {
  std::vector<std::int64_t> result(tensor.shape, tensor.shape + tensor.dimensions);
  result.insert(result.end(), tensor.strides, tensor.strides + tensor.dimensions);
  return result;
}

bool has_layout(const dlpack::Tensor& tensor, const std::vector<std::int64_t>& shape_and_strides) {
  const auto dimensions = static_cast<std::size_t>(tensor.dimensions);
  return shape_and_strides.size() == 2 * dimensions &&
         std::equal(tensor.shape, tensor.shape + dimensions, shape_and_strides.begin()) &&
         std::equal(tensor.strides, tensor.strides + dimensions, shape_and_strides.data() + dimensions);
}

}  // namespace

std::unique_ptr<PreparedAllreduce> PreparedAllreduce::make(Request request, std::vector<Address> addresses,
                                                           int process_set, const py::sequence& gradients,
                                                           py::object rest) {
  PyTypeObject* const type = Py_TYPE(py::object(gradients[0]).ptr());
  const dlpack::ExchangeApi* const api = exchange_api(type);
  if (api == nullptr || gradients.size() > request.tensors.size()) return nullptr;
  std::unique_ptr<PreparedAllreduce> made(
      new PreparedAllreduce(std::move(request), std::move(addresses), process_set, type, *api, std::move(rest)));
  for (const py::handle gradient : gradients) {
    dlpack::Tensor tensor{};
    if (api->tensor_of(gradient.ptr(), &tensor) != 0) {
      PyErr_Clear();
      return nullptr;
    }
    made->layouts_.push_back({tensor.dtype, shape_and_strides(tensor)});
    made->device_ = tensor.device;
  }
  return made;
}

bool PreparedAllreduce::locate(PyObject* const* gradients, std::size_t count) {
  if (count != layouts_.size()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (Py_TYPE(gradients[i]) != type_) return false;
    dlpack::Tensor tensor{};
    if (api_.tensor_of(gradients[i], &tensor) != 0) {
      PyErr_Clear();  // a sparse one, say
      return false;
    }
    if (tensor.device != device_ || tensor.dtype != layouts_[i].dtype) return false;
    if (!has_layout(tensor, layouts_[i].shape_and_strides)) return false;
    void* const data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    addresses_[i] = {data, data};
  }
  return true;
}

std::optional<std::uintptr_t> PreparedAllreduce::stream() const {
  if (request_.tensors[0].device == kHostDevice) return std::nullopt;
  void* stream = nullptr;
  if (api_.current_stream(device_.kind, device_.number, &stream) != 0) throw py::error_already_set();
  return reinterpret_cast<std::uintptr_t>(stream);
}

Submission PreparedAllreduce::submission(std::optional<std::uintptr_t> stream) const {
  return {request_, addresses_, nullptr, stream ? ready_on(request_, *stream) : nullptr};
}

}  // namespace sirtaki
