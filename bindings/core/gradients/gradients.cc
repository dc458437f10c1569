// The hook; sending and finishing of prepared units.
#include "gradients.h"

#include <exception>
#include <new>

#include "core/process.h"
#include "prepared.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

bool diverted = false;  // Python sends all units, for example to a step that is captured

// An attribute of tensors. Saves Python's look-up in the tensor's type at every access.
struct Attribute {
  const char* name;
  PyObject* type = nullptr;  // of the last tensor
  PyGetSetDef* getter = nullptr;

  // A new reference, or null with Python's error.
  PyObject* of(PyObject* tensor) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != type) look_up(tensor);
    return getter != nullptr ? getter->get(tensor, getter->closure) : PyObject_GetAttrString(tensor, name);
  }

 private:
  void look_up(PyObject* tensor) {
    Py_XSETREF(type, new_reference(reinterpret_cast<PyObject*>(Py_TYPE(tensor))));
    PyObject* const found = PyObject_GetAttrString(type, name);
    const bool has_getter = found != nullptr && Py_IS_TYPE(found, &PyGetSetDescr_Type);
    getter = has_getter ? reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset : nullptr;
    Py_XDECREF(found);
    PyErr_Clear();
  }
};

py::object gradient_of(const GradientSlot* slot) {
  static Attribute grad{"grad"};
  PyObject* const gradient = grad.of(slot->parameter);
  if (gradient == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(gradient);
}

// Torch's count of writes to the tensor. Tensors of inference mode have none.
long long version_of(PyObject* gradient) {
  static Attribute version{"_version"};
  PyObject* const value = version.of(gradient);
  if (value == nullptr) {
    PyErr_Clear();
    return 0;
  }
  const long long count = PyLong_AsLongLong(value);
  Py_DECREF(value);
  return count;
}

void remember(GradientSlot* slot, PyObject* gradient) {
  Py_XSETREF(slot->gradient, gradient == Py_None ? nullptr : new_reference(gradient));
  slot->version = gradient == Py_None ? 0 : version_of(gradient);
}

bool is_remembered(const GradientSlot* slot, PyObject* gradient) {
  return gradient == (slot->gradient == nullptr ? Py_None : slot->gradient);
}

// The gradients of all slots, then `rest`; empty if a slot has no gradient.
py::object gradients_of(const GradientUnit* unit, const py::object& rest) {
  const Py_ssize_t count = size_of(unit);
  auto gradients = py::reinterpret_steal<py::object>(PyTuple_New(count + 1));
  if (!gradients) throw py::error_already_set();
  PyTuple_SET_ITEM(gradients.ptr(), count, py::object(rest).release().ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const gradient = gradient_of(slot_at(unit, i)).release().ptr();
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

// The unit's gradients, if they lie as `prepared` describes them; otherwise nothing.
py::object located_gradients(const GradientUnit* unit, PreparedAllreduce& prepared) {
  if (!is_asked_for_at(prepared, unit->step->site)) return {};
  py::object gradients = gradients_of(unit, prepared.rest());
  const auto count = static_cast<std::size_t>(size_of(unit));
  if (!gradients || !prepared.locate(&PyTuple_GET_ITEM(gradients.ptr(), 0), count)) return {};
  return gradients;
}

// False if the unit must be prepared again.
bool send_as_before(GradientUnit* unit) {
  if (unit->prepared == nullptr || unit->times != 0 || diverted) return false;
  const auto held = py::reinterpret_borrow<py::object>(unit->prepared);
  auto& prepared = held.cast<PreparedAllreduce&>();
  const py::object gradients = located_gradients(unit, prepared);
  if (!gradients) return false;
  py::object work;
  try {
    auto engine = engine_for_collective();
    const std::optional<std::uintptr_t> stream = prepared.stream();
    auto promise = engine->queue().put(prepared.process_set(), prepared.submission(stream), WakeUp::kIfCoreFree);
    work = wrap_work(std::move(promise), std::move(engine), gradients, stream);
  } catch (const Error&) {
    return false;  // Python will meet the same error and raise it
  }
  Py_XSETREF(unit->work, work.release().ptr());
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) remember(slot_at(unit, i), PyTuple_GET_ITEM(gradients.ptr(), i));
  unit->times = 1;
  unit->state = kSent;
  unit->as_prepared = 1;
  return true;
}

PyObject* none_or_error(PyObject* result) {
  if (result == nullptr) return nullptr;
  Py_DECREF(result);
  Py_RETURN_NONE;
}

// Call it in a catch block: sets the exception as Python's error. C++ exceptions must not reach autograd or Python.
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
  const auto held =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(unit));  // the slot may get another unit meanwhile
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
  return unit->state == kSent && unit->work != nullptr && unit->as_prepared != 0;
}

// Throws the errors of Work.wait and then changes nothing, so an interrupted wait can be repeated.
void wait_for_unit(GradientUnit* unit) {
  wait_for(py::reinterpret_borrow<py::object>(unit->work), stream_of(unit));
  Py_CLEAR(unit->work);
  unit->state = kReduced;
  unit->as_prepared = 0;
}

py::object object_of(GradientSlot* slot) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(slot));
}

// The first slot whose gradient was replaced or written since it was sent; true if there is none.
py::object changed_slot(const GradientUnit* unit) {
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) {
    GradientSlot* const slot = slot_at(unit, i);
    const py::object gradient = gradient_of(slot);
    if (!is_remembered(slot, gradient.ptr())) return object_of(slot);
    if (slot->gradient != nullptr && version_of(slot->gradient) != slot->version) return object_of(slot);
  }
  return py::bool_(true);
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

PyObject* hand_over(PyObject* self, PyObject*) {
  const auto* unit = as<GradientUnit>(self);
  try {
    for (Py_ssize_t i = 0; i < size_of(unit); ++i) remember(slot_at(unit, i), gradient_of(slot_at(unit, i)).ptr());
    Py_RETURN_NONE;
  } catch (...) {
    return raised();
  }
}

PyObject* changed_since(PyObject* self, PyObject*) {
  try {
    return changed_slot(as<GradientUnit>(self)).release().ptr();
  } catch (...) {
    return raised();
  }
}

PyObject* has_reduced(PyObject*, PyObject* argument) {
  const auto* slot = as<GradientSlot>(argument);
  if (slot->gradient == nullptr) Py_RETURN_FALSE;
  try {
    return PyBool_FromLong(gradient_of(slot).ptr() == slot->gradient);
  } catch (...) {
    return raised();
  }
}

PyObject* reset_unit(PyObject* self, PyObject*) {
  auto* unit = as<GradientUnit>(self);
  unit->state = kOpen;
  unit->ready = unit->times = 0;
  unit->as_prepared = 0;
  Py_CLEAR(unit->work);
  for (Py_ssize_t i = 0; i < size_of(unit); ++i) {
    slot_at(unit, i)->fired = 0;
    Py_CLEAR(slot_at(unit, i)->gradient);
  }
  Py_RETURN_NONE;
}

namespace {

// Calls `visit` with each slot until it returns false. Returns false also if the groups have other parameters.
template <class Visit>
bool visit_parameters(const py::tuple& slots, const py::list& groups, Visit visit) {
  static PyObject* const params = PyUnicode_InternFromString("params");
  const auto count = static_cast<Py_ssize_t>(slots.size());
  Py_ssize_t next = 0;
  for (const py::handle group : groups) {
    const auto listed = py::reinterpret_steal<py::object>(PyObject_GetItem(group.ptr(), params));
    if (!listed) throw py::error_already_set();
    const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(listed.ptr(), "params must be a list"));
    if (!sequence) throw py::error_already_set();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i, ++next) {
      if (next == count) return false;
      auto* const slot = as<GradientSlot>(PyTuple_GET_ITEM(slots.ptr(), next));
      if (PySequence_Fast_GET_ITEM(sequence.ptr(), i) != slot->parameter || !visit(slot)) return false;
    }
  }
  return next == count;
}

py::object called(const py::object& tensor, const char* method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethod(tensor.ptr(), method, nullptr));
}

// Whether two tensors use the same memory, like x and x.detach().
bool is_same_memory(const py::object& one, const py::object& other) {
  for (const char* method : {"data_ptr", "stride", "size"}) {
    const py::object own = called(one, method);
    const py::object others = own ? called(other, method) : py::object();
    if (!others) {
      PyErr_Clear();  // a sparse one
      return false;
    }
    if (!own.equal(others)) return false;
  }
  return py::getattr(one, "dtype").is(py::getattr(other, "dtype"));
}

bool holds_reduced(const GradientSlot* slot, const py::object& gradient) {
  if (slot->unit == nullptr || slot->unit->state < kReduced || slot->gradient == nullptr) return false;
  if (gradient.ptr() == slot->gradient) return true;
  return is_same_memory(gradient, py::reinterpret_borrow<py::object>(slot->gradient));
}

// A parameter without a unit: it was frozen, or is not reduced.
bool sleeps(const GradientSlot* slot) {
  return py::getattr(slot->parameter, "requires_grad").ptr() == Py_False && gradient_of(slot).is_none();
}

// The optimizer skips a parameter without a gradient.
bool is_unsettled(const GradientSlot* slot) {
  const py::object gradient = gradient_of(slot);
  return !gradient.is_none() && !holds_reduced(slot, gradient);
}

}  // namespace

PyObject* slot_is_unsettled(PyObject* self, PyObject*) {
  try {
    return PyBool_FromLong(is_unsettled(as<GradientSlot>(self)));
  } catch (...) {
    return raised();
  }
}

bool same_parameters(const py::tuple& slots, const py::list& groups) {
  return visit_parameters(slots, groups,
                          [](const GradientSlot* slot) { return slot->unit != nullptr || sleeps(slot); });
}

py::object first_unsettled(const py::tuple& slots, const py::list& groups) {
  GradientSlot* unsettled = nullptr;
  const bool same = visit_parameters(slots, groups, [&](GradientSlot* slot) {
    if (unsettled == nullptr && is_unsettled(slot)) unsettled = slot;
    return true;
  });
  if (!same) return py::bool_(true);
  return unsettled == nullptr ? py::none() : object_of(unsettled);
}

}  // namespace sirtaki
