// sirtaki._core: the core's interface for the adapters. Documented in frameworks/sirtaki/_core.pyi.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of Sirtaki.";
  sirtaki::bind_types(module);
  sirtaki::bind_errors(module);
  sirtaki::bind_work(module);
  sirtaki::bind_engine(module);
  sirtaki::bind_c_api(module);
  sirtaki::bind_gpu(module);
  sirtaki::bind_gpu_direct(module);
  sirtaki::bind_cast_gradients(module);
  sirtaki::bind_gradients(module);
  sirtaki::bind_recorder(module);
  sirtaki::bind_tensor_calls(module);
  sirtaki::bind_forced_stacks(module);
  sirtaki::bind_python_stack(module);
}
