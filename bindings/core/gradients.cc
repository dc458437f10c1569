// What a hook does, and how a prepared unit is sent and waited for.
#include "gradients.h"

#include <exception>
#include <new>

#include "prepared.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

bool diverted = false;  // what is sent goes elsewhere, or is written down, so nothing is sent from here

PyObject* grad_attribute() {
  static PyObject* const name = PyUnicode_InternFromString("grad");
  return name;
}

// The gradients of all slots, or nothing if one has none; a Python error only if asking failed.
py::object gradients_of(const GradientUnit* unit) {
  const Py_ssize_t count = size_of(unit);
  auto gradients = py::reinterpret_steal<py::object>(PyTuple_New(count));
  for (Py_ssize_t i = 0; gradients && i < count; ++i) {
    PyObject* const gradient = PyObject_GetAttr(slot_at(unit, i)->parameter, grad_attribute());
    if (gradient == nullptr) throw py::error_already_set();
    PyTuple_SET_ITEM(gradients.ptr(), i, gradient);
    if (gradient == Py_None) return {};
  }
  return gradients;
}

bool is_asked_for_at(const PreparedAllreduce& prepared, PyObject* site) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(site, &length);
  if (text == nullptr) throw py::error_already_set();
  return prepared.site() == std::string_view(text, static_cast<std::size_t>(length));
}

// False if the unit has to be described anew.
bool send_as_before(GradientUnit* unit) {
  if (unit->prepared == nullptr || unit->times != 0 || diverted) return false;
  const auto held = py::reinterpret_borrow<py::object>(unit->prepared);
  auto& prepared = held.cast<PreparedAllreduce&>();
  if (!is_asked_for_at(prepared, unit->step->site)) return false;
  py::object gradients = gradients_of(unit);
  const auto count = static_cast<std::size_t>(size_of(unit));
  if (!gradients || !prepared.locate(&PyTuple_GET_ITEM(gradients.ptr(), 0), count)) return false;
  py::object work;
  try {
    work = prepared.submit(gradients);
  } catch (const Error&) {
    return false;  // the other way meets the same error, and raises it
  }
  Py_XSETREF(unit->work, work.release().ptr());
  Py_XSETREF(unit->sent, gradients.release().ptr());
  unit->times = 1;
  unit->state = kSent;
  return true;
}

PyObject* none_or_error(PyObject* result) {
  if (result == nullptr) return nullptr;
  Py_DECREF(result);
  Py_RETURN_NONE;
}

// In a catch block: what was caught, as Python raises it, for autograd and Python's interpreter know no exceptions.
PyObject* raised() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

void divert_gradients(bool elsewhere) { diverted = elsewhere; }

PyObject* count_gradient(PyObject* self, PyObject*, PyObject*) {
  auto* slot = as<GradientSlot>(self);
  GradientUnit* unit = slot->unit;
  if (unit == nullptr || unit->step->on_gradient == nullptr) Py_RETURN_NONE;
  const auto held = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(unit));  // the slot may change over
  GradientStep* step = unit->step;
  step->touched = 1;
  if (!step->listening || unit->state != kOpen || slot->fired >= step->passes) {
    return none_or_error(PyObject_CallOneArg(step->on_gradient, self));
  }
  if (++slot->fired < step->passes) Py_RETURN_NONE;
  step->full = 1;
  if (++unit->ready < size_of(unit)) Py_RETURN_NONE;
  try {
    if (send_as_before(unit)) Py_RETURN_NONE;
  } catch (...) {
    return raised();
  }
  return none_or_error(PyObject_CallOneArg(step->send, reinterpret_cast<PyObject*>(unit)));
}

namespace {

std::optional<std::uintptr_t> stream_of(const GradientUnit* unit) {
  if (unit->prepared == nullptr) return std::nullopt;  // its slots have changed meanwhile
  return py::handle(unit->prepared).cast<PreparedAllreduce&>().stream();
}

bool is_under_way(const GradientUnit* unit) {
  return unit->state == kSent && unit->work != nullptr && unit->sent != nullptr;
}

// Throws what Work.wait does, and then leaves all as it is: a wait that was interrupted can go on.
void wait_for_unit(GradientUnit* unit) {
  wait_for(py::reinterpret_borrow<py::object>(unit->work), stream_of(unit));
  Py_CLEAR(unit->work);
  unit->state = kReduced;
}

// The first slot whose parameter has another gradient than was sent; none: true.
py::object changed_slot(const GradientUnit* unit) {
  const bool by_place = PyTuple_GET_SIZE(unit->sent) == size_of(unit);
  for (Py_ssize_t i = 0; by_place && i < size_of(unit); ++i) {
    GradientSlot* const slot = slot_at(unit, i);
    const auto gradient = py::reinterpret_steal<py::object>(PyObject_GetAttr(slot->parameter, grad_attribute()));
    if (!gradient) throw py::error_already_set();
    if (gradient.ptr() != PyTuple_GET_ITEM(unit->sent, i)) {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(slot));
    }
  }
  return py::bool_(true);
}

// The gradient that a prepared unit has sent for this slot; null if there is none.
PyObject* sent_for(const GradientUnit* unit, const GradientSlot* slot) {
  if (unit->sent == nullptr || PyTuple_GET_SIZE(unit->sent) != size_of(unit)) return nullptr;
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) {
    if (slot_at(unit, i) == slot) return PyTuple_GET_ITEM(unit->sent, i);
  }
  return nullptr;
}

}  // namespace

PyObject* finish_unit(PyObject* self, PyObject*) {
  auto* unit = as<GradientUnit>(self);
  if (!is_under_way(unit)) Py_RETURN_FALSE;
  try {
    wait_for_unit(unit);
    return changed_slot(unit).release().ptr();
  } catch (...) {
    return raised();
  }
}

py::object finish_units(const py::list& units) {
  for (const py::handle unit : units) {
    if (!is_under_way(as<GradientUnit>(unit.ptr()))) return py::bool_(false);
  }
  std::optional<Error> failure;
  py::object changed = py::bool_(true);
  for (const py::handle each : units) {
    const auto held = py::reinterpret_borrow<py::object>(each);
    auto* unit = as<GradientUnit>(held.ptr());
    try {
      wait_for_unit(unit);
      if (changed.ptr() == Py_True) changed = changed_slot(unit);
    } catch (const Error& error) {
      if (!failure) failure = error;
    }
  }
  if (failure) throw *failure;
  return changed;
}

PyObject* has_reduced(PyObject* self, PyObject* argument) {
  auto* slot = as<GradientSlot>(argument);
  PyObject* reduced = sent_for(as<GradientUnit>(self), slot);
  if (reduced == nullptr) reduced = slot->reduced;
  if (reduced == nullptr || reduced == Py_None) Py_RETURN_FALSE;
  PyObject* const gradient = PyObject_GetAttr(slot->parameter, grad_attribute());
  if (gradient == nullptr) return nullptr;
  Py_DECREF(gradient);
  return PyBool_FromLong(gradient == reduced);
}

PyObject* reset_unit(PyObject* self, PyObject*) {
  auto* unit = as<GradientUnit>(self);
  unit->state = kOpen;
  unit->ready = unit->times = 0;
  Py_CLEAR(unit->work);
  Py_CLEAR(unit->sent);
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) {
    slot_at(unit, i)->fired = 0;
    Py_CLEAR(slot_at(unit, i)->reduced);
  }
  Py_RETURN_NONE;
}

}  // namespace sirtaki
