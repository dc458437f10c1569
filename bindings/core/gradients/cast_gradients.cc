#include "cast_gradients.h"

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "core/bindings.h"
#include "core/tensors/tensor_reader.h"
#include "gradients.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

constexpr std::int64_t kPrime = (std::int64_t{1} << 31) - 1;

std::int64_t added(std::int64_t checksum, const dlpack::Tensor& tensor) {
  checksum = (checksum * 31 + tensor.dimensions) % kPrime;
  for (std::int32_t i = 0; i < tensor.dimensions; ++i) {
    checksum = (checksum * 31 + tensor.shape[i] % kPrime) % kPrime;
    checksum = (checksum * 31 + tensor.strides[i] % kPrime) % kPrime;
  }
  return checksum;
}

}  // namespace

std::int64_t layout_checksum(const py::sequence& tensors) {
  std::int64_t checksum = 0;
  TensorReader reader;
  for (const py::handle tensor : tensors) {
    if (!reader.read(tensor.ptr())) throw py::type_error("a tensor with strides is needed");
    checksum = added(checksum, reader.tensor());
  }
  return checksum;
}

py::object CastGradients::make(const py::tuple& slots, int wire, const py::object& make) {
  auto made = std::make_unique<CastGradients>();
  TensorReader reader;
  std::int64_t elements = 0;
  std::int64_t checksum = 0;
  for (const py::handle slot : slots) {
    py::object gradient = gradient_of(as<GradientSlot>(slot.ptr()));
    if (!reader.read(gradient.ptr()) || is_lazy(gradient.ptr(), reader.tensor())) return py::none();
    const std::optional<TensorSpec> spec = spec_of(reader.tensor());
    const std::uint8_t kind = reader.tensor().dtype.code;
    if (!spec || (kind != dlpack::kFloat && kind != dlpack::kBfloat)) return py::none();
    if (made->parts_.empty()) std::tie(made->own_, made->device_) = std::tuple(spec->dtype, spec->device);
    if (spec->dtype != made->own_ || spec->device != made->device_) return py::none();
    made->parts_.push_back({reader.data(), nullptr, element_count(spec->shape)});
    made->gradients_.append(std::move(gradient));
    elements += made->parts_.back().count;
    checksum = added(checksum, reader.tensor());
  }
  made->wire_ = static_cast<DType>(wire);
  if (made->parts_.empty() || made->own_ == made->wire_) return py::none();
  made->tensors_ = make(made->gradients_[0], elements, checksum);
  reader.read(py::object(made->tensors_[0]).ptr());
  auto* place = static_cast<std::byte*>(reader.data());
  for (Part& part : made->parts_) {
    part.out = place;
    place += static_cast<std::size_t>(part.count) * size_of(made->wire_);
  }
  made->convert(made->wire_, made->own_, made->parts_);
  return py::cast(std::move(made));
}

void CastGradients::put_back() {
  std::vector<Part> parts;
  for (const Part& part : parts_) parts.push_back({part.out, const_cast<void*>(part.in), part.count});
  convert(own_, wire_, parts);
}

void CastGradients::convert(DType to, DType from, const std::vector<Part>& parts) {
  const auto stream = current_stream(py::object(gradients_[0]).ptr(), device_);
  const py::gil_scoped_release release;
  if (stream) return gpu(device_).convert(to, from, parts, 1.0, reinterpret_cast<Stream>(*stream));
  for (const Part& part : parts) sirtaki::convert(to, part.out, from, part.in, part.count, 1.0);
}

void bind_cast_gradients(py::module_& module) {
  py::class_<CastGradients>(module, "CastGradients")
      .def_static("make", &CastGradients::make, py::arg("slots"), py::arg("wire"), py::arg("make"))
      .def_property_readonly("tensors", &CastGradients::tensors)
      .def_property_readonly("present", [](const CastGradients&) { return py::none(); })
      .def("unpack", [](CastGradients& self, const py::object&) { self.put_back(); }, py::arg("bucket"));
  module.def("layout_checksum", &layout_checksum, py::arg("tensors"));
}

}  // namespace sirtaki
