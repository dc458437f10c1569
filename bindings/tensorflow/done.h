// The callback that ends an asynchronous kernel, kept beyond the kernel's compute function.
//
// Up to TensorFlow 2.21 the C API hands out a pointer to a std::function on the caller's stack, which is gone when
// compute returns: there the function itself has to be moved out. Later versions hand out an object on the heap, which
// TF_RunAsyncOpKernelDoneCallback calls and deletes. Where the pointer points tells which it is.
#pragma once

#include <functional>

#include "api.h"

namespace sirtaki::tensorflow {

class Done {
 public:
  // Within compute, on its thread.
  explicit Done(TF_AsyncOpKernelDoneCallback* callback);
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;

  // Once, on any thread. Afterwards TensorFlow may have freed the kernel's context.
  void operator()();

 private:
  TF_AsyncOpKernelDoneCallback* callback_ = nullptr;  // or
  std::function<void()> moved_;
};

}  // namespace sirtaki::tensorflow
