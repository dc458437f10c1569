// The gradients of a bucket that are sent as one tensor of another dtype. One kernel casts all of them, another casts
// the reduced values back.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "device/device.h"

namespace sirtaki {

// For ranks whose gradients have other layouts: they would sum elements that do not belong together.
std::int64_t layout_checksum(const pybind11::sequence& tensors);

class CastGradients {
 public:
  // Casts the gradients of these slots now, on their GPU's current stream. make(like, elements, checksum of the layout)
  // returns the tensors to send: one for all elements, and one whose shape shows the layout. None, without any effect,
  // unless each slot has a gradient, and all are dense, floating, of one dtype other than `wire`, and on one device.
  static pybind11::object make(const pybind11::tuple& slots, int wire, const pybind11::object& make);

  const pybind11::tuple& tensors() const { return tensors_; }
  // Writes the reduced values into the gradients.
  void put_back();

 private:
  void convert(DType to, DType from, const std::vector<Part>& parts);

  pybind11::list gradients_;
  pybind11::tuple tensors_;
  std::vector<Part> parts_;  // from the gradients to the tensor
  DType own_ = DType::kFloat32;
  DType wire_ = DType::kFloat32;
  int device_ = 0;
};

}  // namespace sirtaki
