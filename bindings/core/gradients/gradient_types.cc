// The Python types of gradients.h: attributes, construction, deletion, and garbage collection, which is needed because
// a parameter, its hook and the reducer refer to each other.
#include <pybind11/stl.h>
#include <structmember.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradients.h"
#include "prepared.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

PyTypeObject* step_type = nullptr;
PyTypeObject* unit_type = nullptr;
PyTypeObject* slot_type = nullptr;

PyObject* slots_of(PyObject* self, void*) {
  PyObject* const slots = as<GradientUnit>(self)->slots;
  return slots == nullptr ? PyTuple_New(0) : new_reference(slots);
}

// Takes any sequence of GradientSlot. The prepared request is no longer valid.
int set_slots(PyObject* self, PyObject* value, void*) {
  auto* unit = as<GradientUnit>(self);
  PyObject* const slots = value == nullptr ? PyTuple_New(0) : PySequence_Tuple(value);
  if (slots == nullptr) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); ++i) {
    if (PyObject_TypeCheck(PyTuple_GET_ITEM(slots, i), slot_type)) continue;
    Py_DECREF(slots);
    PyErr_SetString(PyExc_TypeError, "slots must be GradientSlot objects");
    return -1;
  }
  Py_XSETREF(unit->slots, slots);
  Py_CLEAR(unit->prepared);
  return 0;
}

PyObject* prepared_of(PyObject* self, void*) {
  PyObject* const prepared = as<GradientUnit>(self)->prepared;
  return new_reference(prepared == nullptr ? Py_None : prepared);
}

int set_prepared(PyObject* self, PyObject* value, void*) {
  auto* unit = as<GradientUnit>(self);
  if (value == nullptr || value == Py_None) {
    Py_CLEAR(unit->prepared);
  } else if (py::isinstance<PreparedAllreduce>(value)) {
    Py_XSETREF(unit->prepared, new_reference(value));
  } else {
    PyErr_SetString(PyExc_TypeError, "prepared must be a PreparedAllreduce or None");
    return -1;
  }
  return 0;
}

PyObject* unit_of(PyObject* self, void*) {
  auto* unit = as<GradientSlot>(self)->unit;
  return new_reference(unit == nullptr ? Py_None : reinterpret_cast<PyObject*>(unit));
}

int set_unit(PyObject* self, PyObject* value, void*) {
  if (value == Py_None) {
    Py_CLEAR(as<GradientSlot>(self)->unit);
    return 0;
  }
  if (value == nullptr || !PyObject_TypeCheck(value, unit_type)) {
    PyErr_SetString(PyExc_TypeError, "unit must be a GradientUnit or None");
    return -1;
  }
  Py_XSETREF(as<GradientSlot>(self)->unit, as<GradientUnit>(new_reference(value)));
  return 0;
}

int init_step(PyObject* self, PyObject* arguments, PyObject*) {
  auto* step = as<GradientStep>(self);
  PyObject* gradient = nullptr;
  PyObject* send = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOi", &gradient, &send, &step->passes)) return -1;
  Py_XSETREF(step->on_gradient, new_reference(gradient));
  Py_XSETREF(step->send, new_reference(send));
  Py_XSETREF(step->site, PyUnicode_FromString(""));
  return step->site == nullptr ? -1 : 0;
}

int init_unit(PyObject* self, PyObject* arguments, PyObject*) {
  PyObject* step = nullptr;
  PyObject* slots = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O", step_type, &step, &slots)) return -1;
  Py_XSETREF(as<GradientUnit>(self)->step, as<GradientStep>(new_reference(step)));
  return set_slots(self, slots, nullptr);
}

int init_slot(PyObject* self, PyObject* arguments, PyObject*) {
  PyObject* parameter = nullptr;
  if (!PyArg_ParseTuple(arguments, "O", &parameter)) return -1;
  Py_XSETREF(as<GradientSlot>(self)->parameter, new_reference(parameter));
  return 0;
}

template <class T, auto... members>
int visit_members(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  int result = 0;
  const auto one = [&](auto* member) {
    if (result == 0 && member != nullptr) result = visit(reinterpret_cast<PyObject*>(member), arg);
  };
  (one(as<T>(self)->*members), ...);
  return result;
}

template <class T, auto... members>
int clear_members(PyObject* self) {
  const auto one = [](auto*& member) { Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(member, nullptr))); };
  (one(as<T>(self)->*members), ...);
  return 0;
}

constexpr auto visit_step = &visit_members<GradientStep, &GradientStep::on_gradient, &GradientStep::send>;
constexpr auto clear_step = &clear_members<GradientStep, &GradientStep::on_gradient, &GradientStep::send>;
constexpr auto visit_unit = &visit_members<GradientUnit, &GradientUnit::step, &GradientUnit::slots>;
// A unit owns a reference to its step, because hooks read the step as long as they exist.
constexpr auto clear_unit = &clear_members<GradientUnit, &GradientUnit::slots>;
constexpr auto visit_slot =
    &visit_members<GradientSlot, &GradientSlot::parameter, &GradientSlot::unit, &GradientSlot::gradient>;
constexpr auto clear_slot =
    &clear_members<GradientSlot, &GradientSlot::parameter, &GradientSlot::unit, &GradientSlot::gradient>;

void release(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

void drop_step(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_step(self);
  Py_CLEAR(as<GradientStep>(self)->site);
  release(self);
}

void drop_unit(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_unit(self);
  auto* unit = as<GradientUnit>(self);
  Py_CLEAR(unit->step);
  Py_CLEAR(unit->prepared);
  Py_CLEAR(unit->work);
  release(self);
}

void drop_slot(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_slot(self);
  release(self);
}

PyMemberDef step_members[] = {
    {"site", T_OBJECT, offsetof(GradientStep, site), 0, nullptr},
    {"passes", T_INT, offsetof(GradientStep, passes), 0, nullptr},
    {"listening", T_BOOL, offsetof(GradientStep, listening), 0, nullptr},
    {"full", T_BOOL, offsetof(GradientStep, full), 0, nullptr},
    {"touched", T_BOOL, offsetof(GradientStep, touched), 0, nullptr},
    {},
};
PyMemberDef unit_members[] = {
    {"step", T_OBJECT, offsetof(GradientUnit, step), READONLY, nullptr},
    {"work", T_OBJECT, offsetof(GradientUnit, work), 0, nullptr},
    {"state", T_INT, offsetof(GradientUnit, state), 0, nullptr},
    {"ready", T_INT, offsetof(GradientUnit, ready), 0, nullptr},
    {"times", T_INT, offsetof(GradientUnit, times), 0, nullptr},
    {},
};
PyMemberDef slot_members[] = {
    {"parameter", T_OBJECT, offsetof(GradientSlot, parameter), READONLY, nullptr},
    {"gradient", T_OBJECT, offsetof(GradientSlot, gradient), 0, nullptr},
    {"fired", T_INT, offsetof(GradientSlot, fired), 0, nullptr},
    {},
};
PyGetSetDef unit_attributes[] = {
    {"slots", slots_of, set_slots, nullptr, nullptr},
    {"prepared", prepared_of, set_prepared, nullptr, nullptr},
    {},
};
PyMethodDef slot_methods[] = {{"is_unsettled", slot_is_unsettled, METH_NOARGS, nullptr}, {}};
PyGetSetDef slot_attributes[] = {{"unit", unit_of, set_unit, nullptr, nullptr}, {}};
PyMethodDef unit_methods[] = {
    {"changed", changed_since, METH_NOARGS, nullptr}, {"finish", finish_unit, METH_NOARGS, nullptr},
    {"hand_over", hand_over, METH_NOARGS, nullptr},   {"has_reduced", has_reduced, METH_O, nullptr},
    {"reset", reset_unit, METH_NOARGS, nullptr},      {},
};

template <class Function>
PyType_Slot entry(int number, Function* function) {
  return {number, reinterpret_cast<void*>(function)};
}

PyTypeObject* make_type(py::module_& module, const char* name, std::size_t size, std::vector<PyType_Slot> parts) {
  parts.push_back(entry(Py_tp_new, PyType_GenericNew));
  parts.push_back({0, nullptr});
  const std::string full_name = std::string("sirtaki._core.") + name;
  PyType_Spec spec{full_name.c_str(), static_cast<int>(size), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, parts.data()};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.add_object(name, type);
  return as<PyTypeObject>(type);
}

std::unique_ptr<PreparedAllreduce> prepare(std::string name, const std::vector<PyTensor>& tensors, int op,
                                           double prescale, double postscale, int process_set, std::string site,
                                           const py::sequence& gradients, py::object rest) {
  const auto verb = static_cast<int>(Verb::kAllreduce);
  Request request = make_request(verb, std::move(name), op, prescale, postscale, std::move(site));
  std::vector<Address> addresses = take_tensors(tensors, request);
  return PreparedAllreduce::make(std::move(request), std::move(addresses), process_set, gradients, std::move(rest));
}

}  // namespace

void bind_gradients(py::module_& module) {
  step_type = make_type(module, "GradientStep", sizeof(GradientStep),
                        {entry(Py_tp_init, init_step),
                         entry(Py_tp_traverse, visit_step),
                         entry(Py_tp_clear, clear_step),
                         entry(Py_tp_dealloc, drop_step),
                         {Py_tp_members, step_members}});
  unit_type = make_type(module, "GradientUnit", sizeof(GradientUnit),
                        {entry(Py_tp_init, init_unit),
                         entry(Py_tp_traverse, visit_unit),
                         entry(Py_tp_clear, clear_unit),
                         entry(Py_tp_dealloc, drop_unit),
                         {Py_tp_members, unit_members},
                         {Py_tp_getset, unit_attributes},
                         {Py_tp_methods, unit_methods}});
  slot_type = make_type(module, "GradientSlot", sizeof(GradientSlot),
                        {entry(Py_tp_init, init_slot),
                         entry(Py_tp_traverse, visit_slot),
                         entry(Py_tp_clear, clear_slot),
                         entry(Py_tp_dealloc, drop_slot),
                         entry(Py_tp_call, count_gradient),
                         {Py_tp_members, slot_members},
                         {Py_tp_methods, slot_methods},
                         {Py_tp_getset, slot_attributes}});
  py::class_<PreparedAllreduce>(module, "PreparedAllreduce");
  module.def("prepare_allreduce", &prepare, py::arg("name"), py::arg("tensors"), py::arg("op"), py::arg("prescale"),
             py::arg("postscale"), py::arg("process_set"), py::arg("site"), py::arg("gradients"), py::arg("rest"));
  module.def("finish_units", &finish_units, py::arg("units"));
  module.def("same_parameters", &same_parameters, py::arg("slots"), py::arg("groups"));
  module.def("first_unsettled", &first_unsettled, py::arg("slots"), py::arg("groups"));
  module.def("divert_gradients", &divert_gradients, py::arg("elsewhere"));
}

}  // namespace sirtaki
