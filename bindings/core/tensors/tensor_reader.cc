#include "tensor_reader.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "tensor_member.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// "torch.float32". A name without a number of bits, such as "float8_e4m3fn", has no dtype.
dlpack::DataType dtype_named(const std::string& full_name) {
  const std::string name = full_name.substr(full_name.find('.') + 1);
  const std::size_t digits = name.find_last_not_of("0123456789") + 1;
  if (name == "bool") return {dlpack::kBool, 8, 1};
  constexpr std::pair<std::string_view, std::uint8_t> kKinds[] = {{"int", dlpack::kInt},
                                                                  {"uint", dlpack::kUint},
                                                                  {"float", dlpack::kFloat},
                                                                  {"bfloat", dlpack::kBfloat},
                                                                  {"complex", dlpack::kComplex}};
  for (const auto& [kind, code] : kKinds) {
    if (name.substr(0, digits) == kind && digits < name.size())
      return {code, static_cast<std::uint8_t>(std::stoi(name.substr(digits))), 1};
  }
  return {};
}

std::optional<DType> number_of(dlpack::DataType dtype) {
  const int bits = dtype.code == dlpack::kComplex ? dtype.bits / 2 : dtype.bits;
  const int code = dtype.code == dlpack::kComplex ? dlpack::kFloat : dtype.code;
  constexpr std::pair<dlpack::DataType, DType> kNumbers[] = {
      {{dlpack::kBool, 8, 1}, DType::kBool},        {{dlpack::kUint, 8, 1}, DType::kUint8},
      {{dlpack::kInt, 8, 1}, DType::kInt8},         {{dlpack::kUint, 16, 1}, DType::kUint16},
      {{dlpack::kInt, 16, 1}, DType::kInt16},       {{dlpack::kUint, 32, 1}, DType::kUint32},
      {{dlpack::kInt, 32, 1}, DType::kInt32},       {{dlpack::kUint, 64, 1}, DType::kUint64},
      {{dlpack::kInt, 64, 1}, DType::kInt64},       {{dlpack::kFloat, 16, 1}, DType::kFloat16},
      {{dlpack::kBfloat, 16, 1}, DType::kBfloat16}, {{dlpack::kFloat, 32, 1}, DType::kFloat32},
      {{dlpack::kFloat, 64, 1}, DType::kFloat64}};
  for (const auto& [known, number] : kNumbers) {
    if (known.code == code && known.bits == bits && dtype.lanes == 1) return number;
  }
  return std::nullopt;
}

// Whether the elements lie without gaps when the dimensions are passed through in this order, the slowest first.
bool is_dense(const dlpack::Tensor& tensor, const std::vector<std::size_t>& order) {
  std::int64_t expected = 1;
  for (auto dimension = order.rbegin(); dimension != order.rend(); ++dimension) {
    const std::int64_t size = tensor.shape[*dimension];
    if (size == 0) return true;
    if (size != 1 && tensor.strides[*dimension] != expected) return false;
    expected *= size;
  }
  return true;
}

std::optional<Shape> shape_in_memory(const dlpack::Tensor& tensor) {
  const Shape shape(tensor.shape, tensor.shape + tensor.dimensions);
  std::vector<std::size_t> order(shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (std::count(shape.begin(), shape.end(), 0) != 0 || is_dense(tensor, order)) return shape;
  if (shape.size() != 4 && shape.size() != 5) return std::nullopt;
  std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  if (!is_dense(tensor, order)) return std::nullopt;
  Shape permuted;
  for (const std::size_t dimension : order) permuted.push_back(shape[dimension]);
  return permuted != shape ? std::optional(permuted) : std::nullopt;
}

bool calls_true(PyObject* object, TensorMember& method) {
  const auto answer = py::reinterpret_steal<py::object>(method.call(object));
  if (!answer) throw py::error_already_set();
  return answer.ptr() == Py_True;
}

}  // namespace

// Remembers the type that was asked for last, which is torch's.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static PyTypeObject* last = nullptr;
  static const dlpack::ExchangeApi* api = nullptr;
  if (type == last) return api;
  Py_XINCREF(reinterpret_cast<PyObject*>(type));
  Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(last, type)));
  const py::object capsule = py::getattr(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__", py::none());
  api = nullptr;
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsule)) return nullptr;
  api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsule));
  while (api != nullptr && (api->major != dlpack::kMajor || api->tensor_of == nullptr)) api = api->earlier;
  return api;
}

bool TensorReader::read(PyObject* object) {
  const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(object));
  if (api == nullptr) return !Py_IsNone(object) && read_attributes(object);
  if (api->tensor_of(object, &tensor_) == 0) return true;
  PyErr_Clear();  // a sparse one, say
  return false;
}

bool TensorReader::read_attributes(py::handle object) {
  try {
    numbers_ = object.attr("shape").cast<Shape>();
    const auto dimensions = static_cast<std::int32_t>(numbers_.size());
    const auto strides = object.attr("stride")().cast<Shape>();
    numbers_.insert(numbers_.end(), strides.begin(), strides.end());
    const py::object device = object.attr("device");
    const auto kind = device.attr("type").cast<std::string>();
    tensor_.device.kind = kind == "cpu" ? dlpack::kHost : kind == "cuda" ? dlpack::kCuda : 0;
    tensor_.device.number = kind == "cpu" ? 0 : device.attr("index").cast<std::int32_t>();
    tensor_.data = reinterpret_cast<void*>(object.attr("data_ptr")().cast<std::uintptr_t>());
    tensor_.dtype = dtype_named(py::str(object.attr("dtype")));
    tensor_.dimensions = dimensions;
    tensor_.shape = numbers_.data();
    tensor_.strides = numbers_.data() + dimensions;
    tensor_.byte_offset = 0;
    return true;
  } catch (const py::builtin_exception&) {
    return false;
  } catch (const py::error_already_set&) {
    return false;
  }
}

Layout::Layout(const dlpack::Tensor& tensor)
    : dtype_(tensor.dtype), device_(tensor.device), shape_and_strides_(tensor.shape, tensor.shape + tensor.dimensions) {
  shape_and_strides_.insert(shape_and_strides_.end(), tensor.strides, tensor.strides + tensor.dimensions);
}

bool Layout::fits(const dlpack::Tensor& tensor) const {
  const auto dimensions = static_cast<std::size_t>(tensor.dimensions);
  return tensor.dtype == dtype_ && tensor.device == device_ && shape_and_strides_.size() == 2 * dimensions &&
         std::equal(tensor.shape, tensor.shape + dimensions, shape_and_strides_.begin()) &&
         std::equal(tensor.strides, tensor.strides + dimensions, shape_and_strides_.data() + dimensions);
}

std::optional<TensorSpec> spec_of(const dlpack::Tensor& tensor) {
  const std::optional<DType> number = number_of(tensor.dtype);
  const bool on_gpu = tensor.device.kind == dlpack::kCuda;
  if (!number || (!on_gpu && tensor.device.kind != dlpack::kHost)) return std::nullopt;
  std::optional<Shape> shape = shape_in_memory(tensor);
  if (!shape) return std::nullopt;
  if (tensor.dtype.code == dlpack::kComplex) shape->push_back(2);
  return TensorSpec{*number, on_gpu ? tensor.device.number : kHostDevice, std::move(*shape)};
}

bool is_lazy(PyObject* object, const dlpack::Tensor& tensor) {
  static TensorMember is_conj("is_conj");
  static TensorMember is_neg("is_neg");
  return (tensor.dtype.code == dlpack::kComplex && calls_true(object, is_conj)) || calls_true(object, is_neg);
}

std::optional<std::uintptr_t> current_stream(PyObject* object, int device) {
  if (device == kHostDevice) return std::nullopt;
  const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(object));
  if (api == nullptr || api->current_stream == nullptr) {
    return py::module_::import("torch._C").attr("_cuda_getCurrentRawStream")(device).cast<std::uintptr_t>();
  }
  void* stream = nullptr;
  if (api->current_stream(dlpack::kCuda, device, &stream) != 0) throw py::error_already_set();
  return reinterpret_cast<std::uintptr_t>(stream);
}

}  // namespace sirtaki
