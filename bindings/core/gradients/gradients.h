// The hooks on an optimizer's parameters. The usual work for every gradient in every step is done here, without Python:
// a hook counts, and the last hook of a prepared unit sends the unit. In all other cases the hooks call two functions
// of the reducer (frameworks/sirtaki/torch/gradients/reducer.py), which it has given to its `GradientStep`.
//
// Every parameter has a hook. One for each unit would be enough while a program repeats its steps. But a backward that
// reaches none of those would end unnoticed, and its gradients would not be reduced.
//
// This file keeps the rule of docs/gradients.md. A slot stores the gradient that was sent, and torch's count of writes
// to it at that time. `first_unsettled` compares the gradient that the optimizer will read with these.
#pragma once

#include <pybind11/pybind11.h>

namespace sirtaki {

// Shared by all hooks of one reducer.
struct GradientStep {
  PyObject ob_base;
  PyObject* on_gradient;  // (slot): counts the gradient in all unusual cases
  PyObject* send;         // (unit): sends any unit, also one that is not prepared
  PyObject* site;         // str: where the program called backward
  int passes;
  char listening;  // a callback waits for the end of the running backward
  char full;       // some parameter has had all its passes since the last completion
  char touched;    // a hook has run since this was cleared
};

struct GradientUnit {
  PyObject ob_base;
  GradientStep* step;
  PyObject* slots;     // tuple
  PyObject* prepared;  // a PreparedAllreduce, or null
  PyObject* work;      // null unless it was sent and not finished
  int state;           // 0: waits for gradients
  int ready;           // slots that have had all their passes
  int times;           // reductions in this step
  char as_prepared;    // it was sent as prepared
};

// One parameter, and its hook.
struct GradientSlot {
  PyObject ob_base;
  PyObject* parameter;
  GradientUnit* unit;  // null: the parameter is not reduced now
  PyObject* gradient;  // the one sent in this step, later the reduced one; null: no rank has one
  long long version;   // torch's count of writes to the gradient when it was sent
  int fired;           // gradients accumulated since the last step
};

constexpr int kOpen = 0;
constexpr int kSent = 1;
constexpr int kReduced = 2;  // also all larger states

template <class T>
T* as(PyObject* object) {
  return reinterpret_cast<T*>(object);
}

inline PyObject* new_reference(PyObject* reference) {
  Py_XINCREF(reference);
  return reference;
}

// Empty after the garbage collector has cleared the unit.
inline Py_ssize_t size_of(const GradientUnit* unit) {
  return unit->slots == nullptr ? 0 : PyTuple_GET_SIZE(unit->slots);
}
inline GradientSlot* slot_at(const GradientUnit* unit, Py_ssize_t i) {
  return as<GradientSlot>(PyTuple_GET_ITEM(unit->slots, i));
}

// The hook, slot(parameter), and the methods of units; documented in frameworks/sirtaki/_core.pyi.
PyObject* count_gradient(PyObject* slot, PyObject*, PyObject*);
PyObject* finish_unit(PyObject* unit, PyObject*);
PyObject* hand_over(PyObject* unit, PyObject*);
PyObject* changed_since(PyObject* unit, PyObject*);
PyObject* has_reduced(PyObject* unit, PyObject* slot);
PyObject* reset_unit(PyObject* unit, PyObject*);
PyObject* slot_is_unsettled(PyObject* slot, PyObject*);
// Waits for all units, then throws the first failure. Returns false at once unless all were sent as prepared. Otherwise
// returns true, or the first slot whose gradient was replaced or written meanwhile.
pybind11::object finish_units(const pybind11::list& units);
// slots: of an optimizer's parameters, in order. groups: torch's parameter groups of that optimizer. Whether the groups
// contain exactly these parameters, and each parameter that needs a unit has one.
bool same_parameters(const pybind11::tuple& slots, const pybind11::list& groups);
// None if all gradients of these parameters were reduced in this step, and no rank has a gradient that this rank lacks.
// Otherwise the first slot for which that is not certain; true if the parameters are not those of the slots.
pybind11::object first_unsettled(const pybind11::tuple& slots, const pybind11::list& groups);
void divert_gradients(bool elsewhere);

}  // namespace sirtaki
