// The reduction of a unit of gradients, described once: at every further step only their addresses are new.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/bindings.h"
#include "dlpack.h"

namespace sirtaki {

class PreparedAllreduce {
 public:
  // `gradients`: a framework's tensors, which lie as all later ones must: the first of the request's. The request's
  // other tensors stay where `addresses` says, in memory that `rest` keeps. Null if the framework does not say how its
  // tensors lie.
  static std::unique_ptr<PreparedAllreduce> make(Request request, std::vector<Address> addresses, int process_set,
                                                 const pybind11::sequence& gradients, pybind11::object rest);

  // What is sent next lies here. False if one of the objects is not a tensor that lies as it must; no error is set.
  bool locate(PyObject* const* gradients, std::size_t count);
  // Queues what was located. `keep` holds the gradients.
  pybind11::object submit(pybind11::object keep);

  // What is not a gradient: the last of what `submit` has to keep.
  const pybind11::object& rest() const { return rest_; }
  // Where the program asks for it: part of the request.
  const std::string& site() const { return request_.site; }
  // Of the gradients' GPU; none on the host.
  std::optional<std::uintptr_t> stream() const;

 private:
  struct Layout {
    dlpack::DataType dtype;
    std::vector<std::int64_t> shape_and_strides;
  };

  PreparedAllreduce(Request request, std::vector<Address> addresses, int process_set, PyTypeObject* type,
                    const dlpack::ExchangeApi& api, pybind11::object rest)
      : request_(std::move(request)),
        process_set_(process_set),
        type_(type),
        api_(api),
        addresses_(std::move(addresses)),
        rest_(std::move(rest)) {}

  Request request_;
  int process_set_;
  PyTypeObject* type_;  // of the gradients; torch's own, which outlives this
  const dlpack::ExchangeApi& api_;
  dlpack::Device device_{};
  std::vector<Layout> layouts_;
  std::vector<Address> addresses_;
  pybind11::object rest_;
};

}  // namespace sirtaki
