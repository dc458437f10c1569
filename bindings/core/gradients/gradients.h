// The hooks on the parameters of an optimizer: what happens for every gradient at every step is done here, without a
// line of Python. A hook counts; the one that completes a unit sends it, if it is prepared. Everything else is left to
// the reducer (frameworks/sirtaki/torch/gradients/reducer.py), by the two functions that it gives to its
// `GradientStep`.
//
// Every parameter has a hook, though one for each unit would do while a program repeats itself: a backward that reaches
// none of those few would end unnoticed, with gradients that are not reduced.
//
// The rule of docs/gradients.md is kept here: a slot remembers the gradient that was handed over to be reduced and how
// often torch had written it by then, and `first_unsettled` compares what an optimizer will read with it.
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
  int state;           // 0: gradients are awaited
  int ready;           // slots that have had all their passes
  int times;           // reductions in this step
  char as_prepared;    // how it is under way
};

// One parameter, and the hook that it has.
struct GradientSlot {
  PyObject ob_base;
  PyObject* parameter;
  GradientUnit* unit;  // null: no optimizer reduces it now
  PyObject* gradient;  // handed over in this step, and reduced once the unit is; null: no rank has one
  long long version;   // torch's count of writes to the gradient when it was handed over
  int fired;           // gradients accumulated since the last step
};

constexpr int kOpen = 0;
constexpr int kSent = 1;
constexpr int kReduced = 2;  // and all above

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
PyObject* hand_over(PyObject* unit, PyObject*);
PyObject* changed_since(PyObject* unit, PyObject*);
PyObject* has_reduced(PyObject* unit, PyObject* slot);
PyObject* reset_unit(PyObject* unit, PyObject*);
PyObject* slot_is_unsettled(PyObject* slot, PyObject*);
// Waits for all of them and then throws the first failure. False, and nothing is done, unless all were sent as
// prepared; otherwise true, or the first slot whose gradient was replaced or written meanwhile.
pybind11::object finish_units(const pybind11::list& units);
// slots: of an optimizer's parameters in order. groups: the optimizer's, as torch has them. Are these the parameters,
// and is none of them awake that has no unit?
bool same_parameters(const pybind11::tuple& slots, const pybind11::list& groups);
// None if every gradient of these parameters is the one that was reduced in this step, and where there is none no rank
// has one. Otherwise the first slot of which that is not known; true if the parameters are not those of the slots.
pybind11::object first_unsettled(const pybind11::tuple& slots, const pybind11::list& groups);
void divert_gradients(bool elsewhere);

}  // namespace sirtaki
