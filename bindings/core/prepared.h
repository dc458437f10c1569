// The reduction of a unit of gradients, described once: at every further step only their addresses are new.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "dlpack.h"

namespace sirtaki {

class PreparedAllreduce {
 public:
  // `gradients`: a framework's tensors, which lie as all later ones must. Null if it does not say how they lie.
  static std::unique_ptr<PreparedAllreduce> make(Request request, int process_set, const pybind11::sequence& gradients);

  // What is sent next lies here. False if one of the objects is not a tensor that lies as it must; no error is set.
  bool locate(PyObject* const* gradients, std::size_t count);
  // Queues what was located. `keep` holds the gradients.
  pybind11::object submit(pybind11::object keep);

  // Where the program asks for it: part of the request.
  const std::string& site() const { return request_.site; }
  // Of the gradients' GPU; none on the host.
  std::optional<std::uintptr_t> stream() const;

 private:
  struct Layout {
    dlpack::DataType dtype;
    std::vector<std::int64_t> shape_and_strides;
  };

  PreparedAllreduce(Request request, int process_set, PyTypeObject* type, const dlpack::ExchangeApi& api)
      : request_(std::move(request)), process_set_(process_set), type_(type), api_(api) {}

  Request request_;
  int process_set_;
  PyTypeObject* type_;  // of the gradients; torch's own, which outlives this
  const dlpack::ExchangeApi& api_;
  dlpack::Device device_{};
  std::vector<Layout> layouts_;
  std::vector<Address> addresses_;
};

}  // namespace sirtaki
