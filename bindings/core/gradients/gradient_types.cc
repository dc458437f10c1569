// The Python types of gradients.h: attributes, construction, deletion, and garbage collection, which is needed because
// a parameter, its hook and the reducer refer to each other.
#include <pybind11/stl.h>
#include <structmember.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradients.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

PyTypeObject* step_type = nullptr;
PyTypeObject* bucket_type = nullptr;
PyTypeObject* slot_type = nullptr;

PyObject* slots_of(PyObject* self, void*) {
  PyObject* const slots = as<Bucket>(self)->slots;
  return slots == nullptr ? PyTuple_New(0) : new_reference(slots);
}

// Takes any sequence of GradientSlot. The bucket gets a new request.
int set_slots(PyObject* self, PyObject* value, void*) {
  auto* bucket = as<Bucket>(self);
  PyObject* const slots = value == nullptr ? PyTuple_New(0) : PySequence_Tuple(value);
  if (slots == nullptr) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); ++i) {
    if (PyObject_TypeCheck(PyTuple_GET_ITEM(slots, i), slot_type)) continue;
    Py_DECREF(slots);
    PyErr_SetString(PyExc_TypeError, "slots must be GradientSlot objects");
    return -1;
  }
  Py_XSETREF(bucket->slots, slots);
  delete std::exchange(bucket->request, nullptr);
  return 0;
}

PyObject* presence_of(PyObject* self, void*) {
  const BucketRequest* const request = as<Bucket>(self)->request;
  return new_reference(request == nullptr ? Py_None : request->presence().ptr());
}

PyObject* bucket_of(PyObject* self, void*) {
  auto* bucket = as<GradientSlot>(self)->bucket;
  return new_reference(bucket == nullptr ? Py_None : reinterpret_cast<PyObject*>(bucket));
}

int set_bucket(PyObject* self, PyObject* value, void*) {
  if (value == Py_None) {
    Py_CLEAR(as<GradientSlot>(self)->bucket);
    return 0;
  }
  if (value == nullptr || !PyObject_TypeCheck(value, bucket_type)) {
    PyErr_SetString(PyExc_TypeError, "bucket must be a GradientBucket or None");
    return -1;
  }
  Py_XSETREF(as<GradientSlot>(self)->bucket, as<Bucket>(new_reference(value)));
  return 0;
}

int init_step(PyObject* self, PyObject* arguments, PyObject*) {
  auto* step = as<GradientStep>(self);
  PyObject* gradient = nullptr;
  PyObject* send = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOi(idd)i", &gradient, &send, &step->passes, &step->op, &step->prescale,
                        &step->postscale, &step->process_set)) {
    return -1;
  }
  Py_XSETREF(step->on_gradient, new_reference(gradient));
  Py_XSETREF(step->send, new_reference(send));
  Py_XSETREF(step->site, PyUnicode_FromString(""));
  return step->site == nullptr ? -1 : 0;
}

int init_bucket(PyObject* self, PyObject* arguments, PyObject*) {
  auto* bucket = as<Bucket>(self);
  PyObject* step = nullptr;
  PyObject* slots = nullptr;
  PyObject* name = nullptr;
  int in_place = 0;
  if (!PyArg_ParseTuple(arguments, "O!OUp", step_type, &step, &slots, &name, &in_place)) return -1;
  Py_XSETREF(bucket->step, as<GradientStep>(new_reference(step)));
  Py_XSETREF(bucket->name, new_reference(name));
  bucket->in_place = static_cast<char>(in_place);
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
int clear_members([[maybe_unused]] PyObject* self) {
  [[maybe_unused]] const auto one = [](auto*& member) {
    Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(member, nullptr)));
  };
  (one(as<T>(self)->*members), ...);
  return 0;
}

constexpr auto visit_step = &visit_members<GradientStep, &GradientStep::on_gradient, &GradientStep::send>;
constexpr auto clear_step = &clear_members<GradientStep, &GradientStep::on_gradient, &GradientStep::send>;
constexpr auto visit_bucket = &visit_members<Bucket, &Bucket::step, &Bucket::slots, &Bucket::work, &Bucket::packed>;
// A bucket owns a reference to its step, because hooks read the step as long as they exist.
constexpr auto clear_bucket = &clear_members<Bucket, &Bucket::slots, &Bucket::work, &Bucket::packed>;
constexpr auto visit_slot =
    &visit_members<GradientSlot, &GradientSlot::parameter, &GradientSlot::bucket, &GradientSlot::gradient>;
constexpr auto clear_slot =
    &clear_members<GradientSlot, &GradientSlot::parameter, &GradientSlot::bucket, &GradientSlot::gradient>;

// clear: all that the garbage collector may clear. members: those that it may not.
template <class T, int (*clear)(PyObject*), auto... members>
void drop(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  clear_members<T, members...>(self);
  if constexpr (std::is_same_v<T, Bucket>) delete as<Bucket>(self)->request;
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef step_members[] = {
    {"site", T_OBJECT, offsetof(GradientStep, site), 0, nullptr},
    {"passes", T_INT, offsetof(GradientStep, passes), 0, nullptr},
    {"listening", T_BOOL, offsetof(GradientStep, listening), 0, nullptr},
    {"full", T_BOOL, offsetof(GradientStep, full), 0, nullptr},
    {"touched", T_BOOL, offsetof(GradientStep, touched), 0, nullptr},
    {},
};
PyMemberDef bucket_members[] = {
    {"step", T_OBJECT, offsetof(Bucket, step), READONLY, nullptr},
    {"name", T_OBJECT, offsetof(Bucket, name), READONLY, nullptr},
    {"work", T_OBJECT, offsetof(Bucket, work), READONLY, nullptr},
    {"state", T_INT, offsetof(Bucket, state), 0, nullptr},
    {"ready", T_INT, offsetof(Bucket, ready), 0, nullptr},
    {"times", T_INT, offsetof(Bucket, times), 0, nullptr},
    {"in_place", T_BOOL, offsetof(Bucket, in_place), 0, nullptr},
    {},
};
PyMemberDef slot_members[] = {
    {"parameter", T_OBJECT, offsetof(GradientSlot, parameter), READONLY, nullptr},
    {"gradient", T_OBJECT, offsetof(GradientSlot, gradient), 0, nullptr},
    {"fired", T_INT, offsetof(GradientSlot, fired), 0, nullptr},
    {},
};
PyGetSetDef bucket_attributes[] = {
    {"slots", slots_of, set_slots, nullptr, nullptr},
    {"presence", presence_of, nullptr, nullptr, nullptr},
    {},
};
PyMethodDef slot_methods[] = {{"is_unsettled", slot_is_unsettled, METH_NOARGS, nullptr}, {}};
PyGetSetDef slot_attributes[] = {{"bucket", bucket_of, set_bucket, nullptr, nullptr}, {}};
PyMethodDef bucket_methods[] = {
    {"send_in_place", send_in_place, METH_NOARGS, nullptr},
    {"send_packed", send_packed, METH_O, nullptr},
    {"note_sent", note_sent, METH_VARARGS, nullptr},
    {"call_name", call_name, METH_NOARGS, nullptr},
    {"has_reduced", has_reduced, METH_O, nullptr},
    {"reset", reset_bucket, METH_NOARGS, nullptr},
    {},
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

// (address, address, dtype number, shape, device) as core.submit() takes it; None if the tensor must be copied first.
py::object describe_tensor(py::handle tensor) {
  TensorReader reader;
  if (!reader.read(tensor.ptr()) || is_lazy(tensor.ptr(), reader.tensor())) return py::none();
  const std::optional<TensorSpec> spec = spec_of(reader.tensor());
  if (!spec) return py::none();
  const auto address = reinterpret_cast<std::uintptr_t>(reader.data());
  return py::make_tuple(address, address, static_cast<int>(spec->dtype), py::tuple(py::cast(spec->shape)),
                        spec->device);
}

}  // namespace

void bind_gradients(py::module_& module) {
  step_type = make_type(module, "GradientStep", sizeof(GradientStep),
                        {entry(Py_tp_init, init_step),
                         entry(Py_tp_traverse, visit_step),
                         entry(Py_tp_clear, clear_step),
                         entry(Py_tp_dealloc, drop<GradientStep, clear_step, &GradientStep::site>),
                         {Py_tp_members, step_members}});
  bucket_type = make_type(module, "GradientBucket", sizeof(Bucket),
                          {entry(Py_tp_init, init_bucket),
                           entry(Py_tp_traverse, visit_bucket),
                           entry(Py_tp_clear, clear_bucket),
                           entry(Py_tp_dealloc, drop<Bucket, clear_bucket, &Bucket::step, &Bucket::name>),
                           {Py_tp_members, bucket_members},
                           {Py_tp_getset, bucket_attributes},
                           {Py_tp_methods, bucket_methods}});
  slot_type = make_type(module, "GradientSlot", sizeof(GradientSlot),
                        {entry(Py_tp_init, init_slot),
                         entry(Py_tp_traverse, visit_slot),
                         entry(Py_tp_clear, clear_slot),
                         entry(Py_tp_dealloc, drop<GradientSlot, clear_slot>),
                         entry(Py_tp_call, count_gradient),
                         {Py_tp_members, slot_members},
                         {Py_tp_methods, slot_methods},
                         {Py_tp_getset, slot_attributes}});
  module.def("finish_buckets", &finish_buckets, py::arg("buckets"));
  module.def("all_sent", &all_sent, py::arg("buckets"));
  module.def("describe_tensor", &describe_tensor, py::arg("tensor"));
  module.def("same_parameters", &same_parameters, py::arg("slots"), py::arg("groups"));
  module.def("first_unsettled", &first_unsettled, py::arg("slots"), py::arg("groups"));
  module.def("divert_gradients", &divert_gradients, py::arg("elsewhere"));
}

}  // namespace sirtaki
