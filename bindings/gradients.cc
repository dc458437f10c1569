// What a hook does, and how a prepared unit is sent and waited for.
#include "gradients.h"

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
  auto& prepared = py::handle(unit->prepared).cast<PreparedAllreduce&>();
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

}  // namespace

void divert_gradients(bool elsewhere) { diverted = elsewhere; }

PyObject* count_gradient(PyObject* self, PyObject*, PyObject*) {
  auto* slot = as<GradientSlot>(self);
  GradientUnit* unit = slot->unit;
  if (unit == nullptr || unit->step->on_gradient == nullptr) Py_RETURN_NONE;
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
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
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

// Throws what Work.wait does.
void wait_for_unit(GradientUnit* unit) {
  const auto work = py::reinterpret_steal<py::object>(std::exchange(unit->work, nullptr));
  unit->state = kReduced;
  wait_for(work, stream_of(unit));
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
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const Error& error) {
    set_python_error(error);
    return nullptr;
  }
  Py_RETURN_TRUE;
}

bool finish_units(const py::list& units) {
  for (const py::handle unit : units) {
    if (!is_under_way(as<GradientUnit>(unit.ptr()))) return false;
  }
  std::optional<Error> failure;
  for (const py::handle unit : units) {
    try {
      wait_for_unit(as<GradientUnit>(unit.ptr()));
    } catch (const Error& error) {
      if (!failure) failure = error;
    }
  }
  if (failure) throw *failure;
  return true;
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
  Py_CLEAR(unit->sent);
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) {
    slot_at(unit, i)->fired = 0;
    Py_CLEAR(slot_at(unit, i)->reduced);
  }
  Py_RETURN_NONE;
}

}  // namespace sirtaki
