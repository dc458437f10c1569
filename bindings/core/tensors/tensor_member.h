// An attribute or a method of a framework's tensors, by name. Saves Python's look-up in the tensor's type at each use.
#pragma once

#include <pybind11/pybind11.h>

namespace sirtaki {

// Used with the GIL held.
class TensorMember {
 public:
  constexpr explicit TensorMember(const char* name) : name_(name) {}

  // The attribute: a new reference, or null with Python's error.
  PyObject* of(PyObject* tensor) {
    look_up(tensor);
    return getter_ != nullptr ? getter_->get(tensor, getter_->closure) : PyObject_GetAttrString(tensor, name_);
  }
  // What the method returns without arguments: a new reference, or null with Python's error.
  PyObject* call(PyObject* tensor) {
    look_up(tensor);
    return found_ != nullptr ? PyObject_CallOneArg(found_, tensor) : PyObject_CallMethod(tensor, name_, nullptr);
  }

 private:
  void look_up(PyObject* tensor) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == type_) return;
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
    Py_INCREF(type);
    Py_XSETREF(type_, type);
    Py_XSETREF(found_, PyObject_GetAttrString(type, name_));
    PyErr_Clear();
    const bool has_getter = found_ != nullptr && Py_IS_TYPE(found_, &PyGetSetDescr_Type);
    getter_ = has_getter ? reinterpret_cast<PyGetSetDescrObject*>(found_)->d_getset : nullptr;
  }

  const char* name_;
  PyObject* type_ = nullptr;   // of the last tensor
  PyObject* found_ = nullptr;  // the type's member of this name; null: it has none
  PyGetSetDef* getter_ = nullptr;
};

}  // namespace sirtaki
