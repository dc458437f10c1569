#include "done.h"

#include <pthread.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace sirtaki::tensorflow {
namespace {

// The largest address if unknown (the main thread needs /proc and a free file descriptor). Then an object on the heap
// may be taken for one on the stack: its content is moved out, and its few bytes leak. The opposite error would be
// worse: a call of an object that no longer exists.
std::uintptr_t end_of_this_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return std::numeric_limits<std::uintptr_t>::max();
  void* begin = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &begin, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<std::uintptr_t>(begin) + size;
}

// The callers' frames are between this frame and the end of the stack.
bool is_on_this_stack(const void* pointer) {
  thread_local const std::uintptr_t end = end_of_this_stack();
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return address > reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) && address < end;
}

}  // namespace

Done::Done(TF_AsyncOpKernelDoneCallback* callback) {
  if (is_on_this_stack(callback)) {
    moved_ = std::move(*reinterpret_cast<std::function<void()>*>(callback));
  } else {
    callback_ = callback;
  }
}

void Done::operator()() {
  if (callback_ != nullptr) {
    api().run_done_callback(std::exchange(callback_, nullptr));
  } else {
    std::exchange(moved_, nullptr)();
  }
}

}  // namespace sirtaki::tensorflow
