// One walk over the frames of the calling thread, as every backward needs it at its first gradient.
#include <pybind11/pybind11.h>

#include "bindings.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

py::object taken(void* reference) {
  if (reference == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(reference));
}

py::object local(PyFrameObject* frame, const char* name) {
  return py::getattr(reinterpret_cast<PyObject*>(frame), "f_locals")[name];
}

bool begins_with_any(PyObject* file, const py::tuple& prefixes) {
  for (const py::handle prefix : prefixes) {
    const Py_ssize_t found = PyUnicode_Tailmatch(file, prefix.ptr(), 0, PY_SSIZE_T_MAX, -1);
    if (found < 0) throw py::error_already_set();
    if (found > 0) return true;
  }
  return false;
}

py::tuple look_outward(const py::tuple& internal, const py::object& counted, const py::tuple& wanted) {
  py::object file = py::str();
  py::object self = py::none();
  int line = 0;
  int calls = 0;
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* const own = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const py::object code = taken(PyFrame_GetCode(own));
    PyObject* const name = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
    if (line == 0 && !begins_with_any(name, internal)) {
      file = py::reinterpret_borrow<py::object>(name);
      line = PyFrame_GetLineNumber(own);
    }
    calls += code.is(counted) ? 1 : 0;
    for (const py::handle each : wanted) {
      if (code.is(each)) self = local(own, "self");
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(own)));
  }
  return py::make_tuple(file, line, calls, self);
}

}  // namespace

void bind_python_stack(py::module_& module) {
  module.def("look_outward", &look_outward, py::arg("internal"), py::arg("counted"), py::arg("wanted"));
}

}  // namespace sirtaki
