#include "tensor_maker.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "tensor_reader.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

struct Made {
  dlpack::OwnTensor tensor{};
  HostBuffer memory;
  Shape shape;
  Shape strides;
};

// Called by the framework, from any thread.
void free_made(dlpack::OwnTensor* tensor) { delete static_cast<Made*>(tensor->owner); }

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace

bool can_make_like(PyObject* tensor) {
  const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(tensor));
  return api != nullptr && api->object_of != nullptr;
}

py::object tensor_over(HostBuffer memory, const Shape& shape, PyObject* like) {
  TensorReader reader;
  if (!reader.read(like)) throw Error(ErrorKind::kInvalidArgument, "the tensor has lost its memory");
  auto made = std::make_unique<Made>();
  made->memory = std::move(memory);
  made->shape = shape;
  made->strides = strides_of(shape);
  const dlpack::ExchangeApi* const api = exchange_api(Py_TYPE(like));
  made->tensor = {.major = api->major,
                  .minor = api->minor,
                  .owner = made.get(),
                  .free = &free_made,
                  .flags = 0,
                  .tensor = {.data = made->memory.data(),
                             .device = {dlpack::kHost, 0},
                             .dimensions = static_cast<std::int32_t>(shape.size()),
                             .dtype = reader.tensor().dtype,
                             .shape = made->shape.data(),
                             .strides = made->strides.data(),
                             .byte_offset = 0}};
  void* object = nullptr;
  if (api->object_of(&made->tensor, &object) != 0) throw py::error_already_set();
  made.release();  // the tensor owns it
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

}  // namespace sirtaki
