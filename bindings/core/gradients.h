// The hooks on the parameters of an optimizer: what happens for every gradient at every step is done here, without a
// line of Python. A hook counts; the one that completes a unit sends it, if it is prepared. Everything else is left to
// the reducer (frameworks/sirtaki/torch/reducer.py), by the two functions that it gives to its `GradientStep`.
//
// Every parameter has a hook, though one for each unit would do while a program repeats itself: a backward that reaches
// none of those few would end unnoticed, with gradients that are not reduced.
#pragma once

#include <pybind11/pybind11.h>

namespace sirtaki {

// What the hooks of one reducer share.
struct GradientStep {
  PyObject ob_base;
  PyObject* on_gradient;  // (slot): counts it with all the care that is needed
  PyObject* send;         // (unit): sends it, whatever its gradients are
  PyObject* site;         // str: where the program called backward
  int passes;
  char listening;  // an outermost backward is under way, and its end will be noticed
  char full;       // some parameter has had all its passes since the last completion
  char touched;    // a gradient has come since this was cleared
};

struct GradientUnit {
  PyObject ob_base;
  GradientStep* step;
  PyObject* slots;     // tuple
  PyObject* prepared;  // a PreparedAllreduce, or null
  PyObject* work;      // while under way
  PyObject* sent;      // tuple of the gradients that a prepared unit has sent in this step
  int state;           // 0: gradients are awaited
  int ready;           // slots that have had all their passes
  int times;           // reductions in this step
};

// One parameter, and the hook that it has.
struct GradientSlot {
  PyObject ob_base;
  PyObject* parameter;
  GradientUnit* unit;
  PyObject* reduced;  // the gradient as of its reduction in this step, unless its unit was prepared
  int fired;          // gradients accumulated since the last step
};

constexpr int kOpen = 0;
constexpr int kSent = 1;
constexpr int kReduced = 2;

template <class T>
T* as(PyObject* object) {
  return reinterpret_cast<T*>(object);
}

inline PyObject* taken(PyObject* reference) {
  Py_XINCREF(reference);
  return reference;
}

// None are left once the collector has cleared the unit.
inline Py_ssize_t size_of(const GradientUnit* unit) {
  return unit->slots == nullptr ? 0 : PyTuple_GET_SIZE(unit->slots);
}
inline GradientSlot* slot_at(const GradientUnit* unit, Py_ssize_t i) {
  return as<GradientSlot>(PyTuple_GET_ITEM(unit->slots, i));
}

// What frameworks/sirtaki/_core.pyi says of slot(parameter), the hook itself, and of the methods of units.
PyObject* count_gradient(PyObject* slot, PyObject*, PyObject*);
PyObject* finish_unit(PyObject* unit, PyObject*);
PyObject* has_reduced(PyObject* unit, PyObject* slot);
PyObject* reset_unit(PyObject* unit, PyObject*);
// Waits for all of them and then throws the first failure. False, and nothing is done, unless all were sent as
// prepared; otherwise true, or the first slot whose gradient was replaced meanwhile.
pybind11::object finish_units(const pybind11::list& units);
void divert_gradients(bool elsewhere);

}  // namespace sirtaki
