// Reads where a framework's tensor lies and how. In torch from 2.10 on by DLPack's exchange API, before that by the
// tensor's attributes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"
#include "dlpack.h"

namespace sirtaki {

// The functions of a tensor's type; null if the framework offers none. Accessed with the GIL held.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

class TensorReader {
 public:
  // False, without a Python error, if the object is not a tensor with strided memory.
  bool read(PyObject* object);
  // Valid until the next read, and as long as the object lives.
  const dlpack::Tensor& tensor() const { return tensor_; }
  void* data() const { return static_cast<std::byte*>(tensor_.data) + tensor_.byte_offset; }

 private:
  bool read_attributes(pybind11::handle object);

  dlpack::Tensor tensor_{};
  std::vector<std::int64_t> numbers_;  // shape and strides, if they were read from attributes
};

// What must stay equal so that a tensor can be sent as before.
class Layout {
 public:
  explicit Layout(const dlpack::Tensor& tensor);
  bool fits(const dlpack::Tensor& tensor) const;

 private:
  dlpack::DataType dtype_;
  dlpack::Device device_;
  std::vector<std::int64_t> shape_and_strides_;
};

// How the core sends the tensor from its own memory; nothing if it must be copied for that, or cannot be sent. The
// shape is in the order of memory: a rank with a contiguous gradient sends (O, I, H, W), a rank with channels_last
// (O, H, W, I). Different shapes are an error on every rank. If both have the same numbers, as (64, 3, 3, 3), nothing
// would show the difference, so channels_last is copied.
std::optional<TensorSpec> spec_of(const dlpack::Tensor& tensor);

// Whether the memory holds other values than the tensor shows: torch conjugates and negates when they are read.
bool is_lazy(PyObject* object, const dlpack::Tensor& tensor);

// The current stream of the object's GPU; nothing on the host. Throws Python's error.
std::optional<std::uintptr_t> current_stream(PyObject* object, int device);

}  // namespace sirtaki
