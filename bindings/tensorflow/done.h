// The callback that ends an asynchronous kernel, kept beyond the kernel's compute function.
//
// Up to TensorFlow 2.21 the C API passes a pointer to a std::function on the caller's stack. It does not outlive
// compute, so the function must be moved out. Later versions pass an object on the heap, which
// TF_RunAsyncOpKernelDoneCallback calls and deletes. The pointer's address shows which of the two it is.
#pragma once

#include <functional>

#include "api.h"

namespace sirtaki::tensorflow {

class Done {
 public:
  // Call it within compute, on the same thread.
  explicit Done(TF_AsyncOpKernelDoneCallback* callback);
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;

  // Call it once, on any thread. Afterwards TensorFlow may have freed the kernel's context.
  void operator()();

 private:
  TF_AsyncOpKernelDoneCallback* callback_ = nullptr;  // null if moved_ is set
  std::function<void()> moved_;
};

}  // namespace sirtaki::tensorflow
