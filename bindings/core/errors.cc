#include "bindings.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

py::gil_safe_call_once_and_store<py::object>& internal_error() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> type;
  return type;
}

}  // namespace

void set_python_error(const Error& error) {
  const bool invalid = error.kind() == ErrorKind::kInvalidArgument;
  PyErr_SetString(invalid ? PyExc_ValueError : internal_error().get_stored().ptr(), error.what());
}

void bind_errors(py::module_& module) {
  internal_error().call_once_and_store_result([&]() -> py::object {
    py::object type = py::exception<Error>(module, "InternalError", PyExc_RuntimeError);
    type.attr("__module__") = "sirtaki";  // its public name, in programs and tracebacks
    type.attr("__name__") = "SirtakiInternalError";
    type.attr("__qualname__") = "SirtakiInternalError";
    return type;
  });
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the type that pybind11 wants
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      set_python_error(error);
    }
  });
}

}  // namespace sirtaki
