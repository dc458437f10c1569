// What each file of the binding adds to the module.
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
void bind_gradients(pybind11::module_& module);
void bind_forced_stacks(pybind11::module_& module);

// "" if they cannot be had. Any thread, without the interpreter's lock.
std::string stacks_by_force();

// The GPU of this number. Throws Error(kPrecondition) with the loader's words.
Device& gpu(int number);
// NCCL, or null and the loader's words.
std::shared_ptr<const NcclLibrary> find_nccl(std::string& why);
// For the planes of a job whose ranks find their usual GPU by `local_rank`.
GpuOptions gpu_options(const Settings& settings, std::function<void(const std::string&)> tell,
                       std::function<int()> local_rank);

// The engine of this process. Throws Error(kPrecondition) before init.
std::shared_ptr<Engine> engine_to_use();

// What Python raises for it.
void set_python_error(const Error& error);

// A tensor as Python describes it: address to read, to write, dtype number, shape, device.
using PyTensor = std::tuple<std::uintptr_t, std::uintptr_t, int, Shape, int>;
// Makes them the request's, and gives their addresses. Throws Error for a dtype that does not exist.
std::vector<Address> take_tensors(const std::vector<PyTensor>& tensors, Request& request);

// The point in the stream's order at which the request was made. Throws Error(kPrecondition) while that is captured.
EventPtr ready_on(const Request& request, std::uintptr_t stream);

// For a thread that has waited without the GIL and is about to take it again. While the interpreter ends, Python would
// unwind such a thread, and C++ would end the process by std::terminate; so the thread stays here until the process
// ends.
void stay_out_of_ending_interpreter();

// A Work for Python: it keeps `keep` alive until neither the engine nor a GPU touches its memory any longer. `stream`:
// on which the memory was made, null on the host.
pybind11::object wrap_work(std::shared_ptr<Work> work, std::shared_ptr<Engine> engine, pybind11::object keep,
                           std::optional<std::uintptr_t> stream);
// Work.wait of such an object.
void wait_for(pybind11::handle work, std::optional<std::uintptr_t> stream);

}  // namespace sirtaki
