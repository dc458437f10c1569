// The hooks on an optimizer's parameters, and buckets: the slots of one request. The usual work for every gradient in
// every step is done here, without Python: a hook counts, the last hook of a bucket sends it, and finish_buckets waits.
// The reducer (frameworks/sirtaki/torch/gradients/reducer.py) gives two functions to its `GradientStep`, which the
// hooks call before unusual gradients, and for buckets that cannot be sent from the gradients' own memory.
//
// Every parameter has a hook. One for each bucket would be enough while a program repeats its steps. But a backward
// that reaches none of those would end unnoticed, and its gradients would not be reduced.
//
// This file keeps the rule of docs/gradients.md. A slot stores the gradient that was sent, and torch's count of writes
// to it at that time. `first_unsettled` compares the gradient that the optimizer will read with these.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bucket_request.h"

namespace sirtaki {

// Shared by all hooks of one reducer.
struct GradientStep {
  PyObject ob_base;
  PyObject* on_gradient;  // (slot): called before a gradient is counted, in all unusual cases
  PyObject* send;         // (bucket): sends a bucket with all its gradients that cannot be sent in place
  PyObject* site;         // str: where the program called backward
  int passes;
  int op;
  double prescale;
  double postscale;
  int process_set;
  char listening;  // a callback waits for the end of the running backward
  char full;       // some parameter has had all its passes since the last completion
  char touched;    // a hook has run since this was cleared
};

struct Bucket {
  PyObject ob_base;
  GradientStep* step;
  PyObject* slots;         // tuple
  PyObject* name;          // str: of its request
  PyObject* work;          // null unless it was sent and not finished
  PyObject* packed;        // what Python sent in place of the gradients, until the bucket is finished; null: they were
  BucketRequest* request;  // null until it is sent
  int state;               // kOpen: waits for gradients
  int ready;               // slots that have had all their passes
  int times;               // reductions in this step
  char in_place;           // its gradients may be sent from their own memory
};

// One parameter, and its hook.
struct GradientSlot {
  PyObject ob_base;
  PyObject* parameter;
  Bucket* bucket;      // null: the parameter is not reduced now
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

// Empty after the garbage collector has cleared the bucket.
inline Py_ssize_t size_of(const Bucket* bucket) {
  return bucket->slots == nullptr ? 0 : PyTuple_GET_SIZE(bucket->slots);
}
inline GradientSlot* slot_at(const Bucket* bucket, Py_ssize_t i) {
  return as<GradientSlot>(PyTuple_GET_ITEM(bucket->slots, i));
}

// The parameter's present gradient, or None.
pybind11::object gradient_of(const GradientSlot* slot);

// The hook, slot(parameter), and the methods of slots and buckets; documented in frameworks/sirtaki/_core.pyi.
PyObject* count_gradient(PyObject* slot, PyObject*, PyObject*);
PyObject* slot_is_unsettled(PyObject* slot, PyObject*);
PyObject* send_in_place(PyObject* bucket, PyObject*);
PyObject* send_packed(PyObject* bucket, PyObject* packed);
PyObject* note_sent(PyObject* bucket, PyObject* work);
PyObject* call_name(PyObject* bucket, PyObject*);
PyObject* has_reduced(PyObject* bucket, PyObject* slot);
PyObject* reset_bucket(PyObject* bucket, PyObject*);
// Waits for all that were sent, then throws the first failure. Returns true, or the first slot whose gradient was
// replaced or written meanwhile.
pybind11::object finish_buckets(const pybind11::list& buckets);
bool all_sent(const pybind11::list& buckets);
// slots: of an optimizer's parameters, in order. groups: torch's parameter groups of that optimizer. Whether the groups
// contain exactly these parameters, and each parameter that needs a bucket has one.
bool same_parameters(const pybind11::tuple& slots, const pybind11::list& groups);
// None if all gradients of these parameters were reduced in this step, and no rank has a gradient that this rank lacks.
// Otherwise the first slot for which that is not certain; true if the parameters are not those of the slots.
pybind11::object first_unsettled(const pybind11::tuple& slots, const pybind11::list& groups);
void divert_gradients(bool elsewhere);

}  // namespace sirtaki
