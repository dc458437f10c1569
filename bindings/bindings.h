// What each file of the binding adds to the module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine.h"

namespace sirtaki {

void bind_types(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_work(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_c_api(pybind11::module_& module);

// The engine of this process. Throws Error(kPrecondition) before init.
std::shared_ptr<Engine> engine_to_use();

// For a thread that has waited without the GIL and is about to take it again. While the interpreter ends, Python would
// unwind such a thread, and C++ would end the process by std::terminate; so the thread stays here until the process
// ends.
void stay_out_of_ending_interpreter();

// A Work for Python: it keeps `keep` alive until the engine no longer touches its memory.
pybind11::object wrap_work(std::shared_ptr<Work> work, std::shared_ptr<Engine> engine, pybind11::object keep);

}  // namespace sirtaki
