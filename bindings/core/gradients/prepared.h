// The request for a unit of gradients, made once. In later steps only the addresses of the gradients change.
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
  // `gradients`: the framework's tensors for the first tensors of the request; later gradients must have the same
  // layouts. The other tensors of the request keep their `addresses`; `rest` owns their memory. Null if the framework
  // does not give the layouts of its tensors.
  static std::unique_ptr<PreparedAllreduce> make(Request request, std::vector<Address> addresses, int process_set,
                                                 const pybind11::sequence& gradients, pybind11::object rest);

  // Reads the addresses of the next gradients. False, without a Python error, if an object has another layout.
  bool locate(PyObject* const* gradients, std::size_t count);
  // With the memory that was located last. `stream`: of the gradients' GPU.
  Submission submission(std::optional<std::uintptr_t> stream) const;
  int process_set() const { return process_set_; }

  // The owner of the tensors that are not gradients: a submission uses this memory, too.
  const pybind11::object& rest() const { return rest_; }
  // The call site in the request.
  const std::string& site() const { return request_.site; }
  // The stream of the gradients' GPU; none on the host.
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
  PyTypeObject* type_;  // of the gradients; torch's type, which outlives this object
  const dlpack::ExchangeApi& api_;
  dlpack::Device device_{};
  std::vector<Layout> layouts_;
  std::vector<Address> addresses_;
  pybind11::object rest_;
};

}  // namespace sirtaki
