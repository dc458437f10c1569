// Functions that the files of this binding share.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "plane/gpu/gpu.h"

namespace sirtaki {

void bind_types(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_work(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_c_api(pybind11::module_& module);
void bind_gpu(pybind11::module_& module);
void bind_gpu_direct(pybind11::module_& module);
void bind_cast_gradients(pybind11::module_& module);
void bind_gradients(pybind11::module_& module);
void bind_recorder(pybind11::module_& module);
void bind_tensor_calls(pybind11::module_& module);
void bind_forced_stacks(pybind11::module_& module);
void bind_python_stack(pybind11::module_& module);

// "" if they are not available. Any thread, without the GIL.
std::string stacks_by_force();

// The GPU of this number. Throws Error(kPrecondition) with the loader's message.
Device& gpu(int number);
// NCCL, or null with the loader's message in `why`.
std::shared_ptr<const NcclLibrary> find_nccl(std::string& why);
// For the planes of a job. A rank's usual GPU is chosen by `local_rank`.
GpuOptions gpu_options(const Settings& settings, std::function<void(const std::string&)> log,
                       std::function<int()> local_rank);

// Sets the Python exception for this error.
void set_python_error(const Error& error);

// A number from outside as a value of this enumeration. Throws Error(kInvalidArgument) if there is no such value.
template <class Enum>
Enum to_enum(int value, int count, const char* what) {
  if (value < 0 || value >= count) {
    throw Error(ErrorKind::kInvalidArgument, std::string("unknown ") + what + " number " + std::to_string(value));
  }
  return static_cast<Enum>(value);
}

// The one way to a submission from numbers of Python, C, and buckets of gradients. Throws Error(kInvalidArgument) for
// an unknown verb, op or dtype.
struct RequestBuilder {
  RequestBuilder(int verb, std::string name, int op, double prescale, double postscale, std::string site, int root = -1,
                 std::vector<std::int64_t> splits = {});
  void add(int dtype, int device, Shape shape, Address address);
  void add(TensorSpec spec, Address address);
  int device() const { return specs.empty() ? kHostDevice : specs[0].device; }  // of all tensors
  // The builder is empty afterwards.
  Submission submission(Allocate allocate, EventPtr ready);

  Request request;  // without tensors until it is submitted
  std::vector<TensorSpec> specs;
  std::vector<Address> addresses;
};

// An event on the device's stream at the time of the request. Throws Error(kPrecondition) while the stream is captured.
EventPtr ready_on(const Request& request, int device, std::uintptr_t stream);

// Call it before a thread that waited without the GIL takes the GIL again. While the interpreter ends, Python would
// unwind such a thread, and C++ would call std::terminate. So the thread then stays here until the process ends.
void stay_out_of_ending_interpreter();

// A Work for Python. It keeps `keep` alive until neither the engine nor a GPU uses its memory. `stream`: the stream
// that allocated the memory, null for host memory.
pybind11::object wrap_work(std::shared_ptr<Work> work, std::shared_ptr<Engine> engine, pybind11::object keep,
                           std::optional<std::uintptr_t> stream);
// Python's Work.wait() on an object made by wrap_work(), or on another object that has this method.
void wait_for(const pybind11::object& work, std::optional<std::uintptr_t> stream);

}  // namespace sirtaki
