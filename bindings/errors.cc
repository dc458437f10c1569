#include "bindings.h"

namespace sirtaki {

namespace py = pybind11;

void bind_errors(py::module_& module) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> internal_error;
  internal_error.call_once_and_store_result(
      [&] { return py::exception<Error>(module, "InternalError", PyExc_RuntimeError); });
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kInvalidArgument) {
        PyErr_SetString(PyExc_ValueError, error.what());
      } else {
        PyErr_SetString(internal_error.get_stored().ptr(), error.what());
      }
    }
  });
}

}  // namespace sirtaki
