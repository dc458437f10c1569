// The hook; sending and finishing of buckets; which gradients are the reduced ones.
#include "gradients.h"

#include <exception>
#include <new>

#include "core/process.h"
#include "core/tensors/tensor_member.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

bool diverted = false;  // Python sends all buckets, for example to a step that is captured

template <class T>
py::object object_of(T* object) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
}

std::string_view text_of(PyObject* string) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(string, &length);
  if (text == nullptr) throw py::error_already_set();
  return {text, static_cast<std::size_t>(length)};
}

std::string name_of_call(const Bucket* bucket) {
  const std::string name(text_of(bucket->name));
  return bucket->times == 0 ? name : name + ".pass" + std::to_string(bucket->times + 1);
}

BucketRequest& request_of(Bucket* bucket) {
  if (bucket->request == nullptr) {
    const GradientStep& step = *bucket->step;
    bucket->request = new BucketRequest({static_cast<int>(Verb::kAllreduce), std::string(text_of(bucket->name)),
                                         step.op, step.prescale, step.postscale, ""});
  }
  return *bucket->request;
}

// Torch's count of writes to the tensor. Tensors of inference mode have none.
long long version_of(PyObject* gradient) {
  static TensorMember version("_version");
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

// The bucket's gradients; nothing if they must be packed.
py::object gradients_of(const Bucket* bucket) {
  if (bucket->in_place == 0 || diverted) return {};
  const Py_ssize_t count = size_of(bucket);
  auto gradients = py::reinterpret_steal<py::object>(PyTuple_New(count));
  if (!gradients) throw py::error_already_set();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const gradient = gradient_of(slot_at(bucket, i)).release().ptr();
    PyTuple_SET_ITEM(gradients.ptr(), i, gradient);
    if (gradient == Py_None) return {};
  }
  return gradients;
}

// The slots remember the gradients that this work reduces: these, or if null the present ones of the parameters.
void remember_sent(Bucket* bucket, const py::object& work, PyObject* const* gradients = nullptr) {
  for (Py_ssize_t i = 0; i < size_of(bucket); ++i) {
    GradientSlot* const slot = slot_at(bucket, i);
    remember(slot, gradients != nullptr ? gradients[i] : gradient_of(slot).ptr());
  }
  Py_XSETREF(bucket->work, new_reference(work.ptr()));
  ++bucket->times;
  bucket->state = kSent;
}

// Submits the gradients, or what Python has packed in their place. False, without any effect, if that is not possible.
bool send(Bucket* bucket, PyObject* packed) {
  const py::object tensors = packed == nullptr ? gradients_of(bucket) : py::tuple(py::handle(packed).attr("tensors"));
  if (!tensors || PyTuple_GET_SIZE(tensors.ptr()) == 0) return false;
  PyObject* const* const first = &PyTuple_GET_ITEM(tensors.ptr(), 0);
  BucketRequest& request = request_of(bucket);
  if (!request.locate(first, static_cast<std::size_t>(PyTuple_GET_SIZE(tensors.ptr())))) return false;
  if (!request.is_complete()) request.complete(object_of(bucket).attr("make_presence")(py::handle(*first)));
  auto engine = engine_for_collective();
  const std::optional<std::uintptr_t> stream = request.stream();
  py::object own = py::none();
  if (packed != nullptr) own = py::handle(packed).attr("present");
  std::string name = bucket->times == 0 ? std::string() : name_of_call(bucket);
  Submission submission = request.submission(std::move(name), text_of(bucket->step->site), own, stream);
  auto work = engine->queue().put(bucket->step->process_set, std::move(submission), WakeUp::kIfCoreFree);
  const py::tuple keep = py::make_tuple(tensors, request.presence(), own);
  remember_sent(bucket, wrap_work(std::move(work), std::move(engine), keep, stream),
                packed == nullptr ? first : nullptr);
  Py_XSETREF(bucket->packed, new_reference(packed));
  return true;
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

py::object gradient_of(const GradientSlot* slot) {
  static TensorMember grad("grad");
  PyObject* const gradient = grad.of(slot->parameter);
  if (gradient == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(gradient);
}

void divert_gradients(bool elsewhere) { diverted = elsewhere; }

namespace {

void call(PyObject* function, PyObject* argument) {
  if (!py::reinterpret_steal<py::object>(PyObject_CallOneArg(function, argument))) throw py::error_already_set();
}

// Runs a function for Python. No C++ exception may reach autograd or Python.
template <class Function>
PyObject* guarded(const Function& function) {
  try {
    return py::object(function()).release().ptr();
  } catch (...) {
    return raised();
  }
}

}  // namespace

PyObject* count_gradient(PyObject* self, PyObject*, PyObject*) {
  return guarded([slot = as<GradientSlot>(self)] {
    if (slot->bucket == nullptr || slot->bucket->step->on_gradient == nullptr) return py::none();
    py::object held = object_of(slot->bucket);  // the slot may get another bucket meanwhile
    auto* bucket = as<Bucket>(held.ptr());
    GradientStep* step = bucket->step;
    step->touched = 1;
    if (step->listening == 0 || bucket->state != kOpen || slot->fired >= step->passes) {
      call(step->on_gradient, reinterpret_cast<PyObject*>(slot));
      if (slot->bucket == nullptr) return py::none();  // the optimizer has let go of it
      held = object_of(slot->bucket);
      bucket = as<Bucket>(held.ptr());
    }
    if (++slot->fired < step->passes) return py::none();
    step->full = 1;
    if (++bucket->ready == size_of(bucket) && !send(bucket, nullptr)) call(step->send, held.ptr());
    return py::none();
  });
}

PyObject* send_in_place(PyObject* self, PyObject*) {
  return guarded([&] { return py::bool_(send(as<Bucket>(self), nullptr)); });
}

PyObject* send_packed(PyObject* self, PyObject* packed) {
  return guarded([&] {
    if (!send(as<Bucket>(self), packed)) throw py::value_error("packed tensors must be dense, on the host or a GPU");
    return py::none();
  });
}

PyObject* note_sent(PyObject* self, PyObject* arguments) {
  return guarded([&] {
    auto* bucket = as<Bucket>(self);
    const auto [work, packed] = py::reinterpret_borrow<py::tuple>(arguments).cast<std::pair<py::object, py::object>>();
    remember_sent(bucket, work);
    Py_XSETREF(bucket->packed, new_reference(packed.ptr()));
    return py::none();
  });
}

PyObject* call_name(PyObject* self, PyObject*) {
  return guarded([&] { return py::str(name_of_call(as<Bucket>(self))); });
}

namespace {

// The first slot whose gradient was replaced or written since it was sent; true if there is none.
py::object changed_slot(const Bucket* bucket) {
  for (Py_ssize_t i = 0; i < size_of(bucket); ++i) {
    GradientSlot* const slot = slot_at(bucket, i);
    const py::object gradient = gradient_of(slot);
    if (!is_remembered(slot, gradient.ptr())) return object_of(slot);
    if (slot->gradient != nullptr && version_of(slot->gradient) != slot->version) return object_of(slot);
  }
  return py::bool_(true);
}

// Throws the errors of Work.wait and then changes nothing, so an interrupted wait can be repeated. Returns
// changed_slot().
py::object finish(Bucket* bucket) {
  wait_for(object_of(bucket->work), bucket->request == nullptr ? std::nullopt : bucket->request->stream());
  py::object changed = changed_slot(bucket);
  if (bucket->packed != nullptr && changed.ptr() == Py_True)
    object_of(bucket->packed).attr("unpack")(object_of(bucket));
  Py_CLEAR(bucket->work);
  Py_CLEAR(bucket->packed);
  bucket->state = kReduced;
  return changed;
}

}  // namespace

py::object finish_buckets(const py::list& buckets) {
  std::exception_ptr failure;
  py::object changed = py::bool_(true);
  for (const py::handle each : py::tuple(buckets)) {  // the list may change meanwhile
    auto* const bucket = as<Bucket>(each.ptr());
    if (bucket->state != kSent) continue;
    try {
      const py::object found = finish(bucket);
      if (changed.ptr() == Py_True) changed = found;
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;  // interrupted
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  return changed;
}

bool all_sent(const py::list& buckets) {
  for (const py::handle bucket : buckets) {
    if (as<Bucket>(bucket.ptr())->state == kOpen) return false;
  }
  return true;
}

PyObject* has_reduced(PyObject*, PyObject* argument) {
  const auto* slot = as<GradientSlot>(argument);
  return guarded([&] { return py::bool_(slot->gradient != nullptr && gradient_of(slot).ptr() == slot->gradient); });
}

PyObject* reset_bucket(PyObject* self, PyObject*) {
  auto* bucket = as<Bucket>(self);
  bucket->state = kOpen;
  bucket->ready = bucket->times = 0;
  Py_CLEAR(bucket->work);
  Py_CLEAR(bucket->packed);
  for (Py_ssize_t i = 0; i < size_of(bucket); ++i) {
    slot_at(bucket, i)->fired = 0;
    Py_CLEAR(slot_at(bucket, i)->gradient);
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

// Whether two tensors use the same memory, like x and x.detach().
bool is_same_memory(PyObject* one, PyObject* other) {
  TensorReader own;
  TensorReader others;
  return own.read(one) && others.read(other) && own.data() == others.data() &&
         Layout(own.tensor()).fits(others.tensor());
}

bool holds_reduced(const GradientSlot* slot, const py::object& gradient) {
  if (slot->bucket == nullptr || slot->bucket->state < kReduced || slot->gradient == nullptr) return false;
  if (gradient.ptr() == slot->gradient) return true;
  return is_same_memory(gradient.ptr(), slot->gradient);
}

// A parameter without a bucket: it was frozen, or is not reduced.
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
  return guarded([&] { return py::bool_(is_unsettled(as<GradientSlot>(self))); });
}

bool same_parameters(const py::tuple& slots, const py::list& groups) {
  return visit_parameters(slots, groups,
                          [](const GradientSlot* slot) { return slot->bucket != nullptr || sleeps(slot); });
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
