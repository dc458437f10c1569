// The request of a bucket. In later steps usually only the addresses of the gradients change.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "core/bindings.h"
#include "core/tensors/tensor_reader.h"

namespace sirtaki {

class BucketRequest {
 public:
  // builder: without tensors.
  explicit BucketRequest(RequestBuilder builder) : builder_(std::move(builder)) {}

  // Reads where these tensors lie. False, without any effect, if one cannot be sent from its own memory.
  bool locate(PyObject* const* tensors, std::size_t count);
  // False at first, and after tensors of other layouts were located.
  bool is_complete() const { return !presence_.is_none(); }
  // presence: two tensors with one element for each slot, sent behind the others: the input of a rank that has all
  // gradients, and the result.
  void complete(pybind11::tuple presence);

  // With the memory that was located last. name: "" for the usual one. site: where the program called backward. own:
  // the first tensor of `presence` if this rank lacks gradients, else None.
  Submission submission(std::string name, std::string_view site, pybind11::handle own,
                        std::optional<std::uintptr_t> stream);
  // None until the request is complete.
  const pybind11::object& presence() const { return presence_; }
  // The current stream of the tensors' GPU; nothing on the host.
  std::optional<std::uintptr_t> stream() const;

 private:
  bool locate_again(PyObject* const* tensors, std::size_t count);
  bool describe(PyObject* const* tensors, std::size_t count);

  RequestBuilder builder_;  // of the tensors, then of the presence
  TensorReader reader_;
  std::vector<Layout> layouts_;
  pybind11::object presence_ = pybind11::none();
};

}  // namespace sirtaki
