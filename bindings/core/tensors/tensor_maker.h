// Makes a framework's tensor over the core's memory.
#pragma once

#include <pybind11/pybind11.h>

#include "base/types.h"
#include "memory/host_buffer.h"

namespace sirtaki {

// Can tensor_over() make tensors of this one's type?
bool can_make_like(PyObject* tensor);
// A tensor with the dtype of `like`, which frees the memory at its end.
pybind11::object tensor_over(HostBuffer memory, const Shape& shape, PyObject* like);

}  // namespace sirtaki
