#include <pybind11/stl.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "fork.h"
#include "tensors/tensor_maker.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// Memory of works that Python has dropped while the engine still uses it. Accessed only with the GIL held.
using MemoryInUse = std::vector<std::pair<std::shared_ptr<Work>, py::object>>;

MemoryInUse& memory_in_use() {
  static auto* const list = new MemoryInUse;  // never destroyed: the interpreter may end before the process
  return *list;
}

bool is_in_use(const Work& work) {
  if (!work.done()) return true;
  if (work.abandoned() || work.output_ready() == nullptr) return false;
  try {
    return !work.output_ready()->reached();
  } catch (const Error&) {
    return false;  // a failed GPU uses no memory any more; the error is reported elsewhere
  }
}

// Makes work queued on the stream from now on wait for the event, unless the last call did the same: the works of a
// batch share one event.
void block_stream(const EventPtr& event, std::uintptr_t stream) {
  static auto* const last = new std::pair<std::weak_ptr<Event>, std::uintptr_t>;  // accessed only with the GIL held
  if (last->first.lock() == event && last->second == stream) return;
  event->block_stream(reinterpret_cast<Stream>(stream));
  *last = {event, stream};
}

// Dropping an object may run any code, even this function. So the list is complete before any object is dropped.
void drop_unused_memory() {
  MemoryInUse finished;
  MemoryInUse kept;
  for (auto& leftover : memory_in_use()) (is_in_use(*leftover.first) ? kept : finished).push_back(std::move(leftover));
  memory_in_use().swap(kept);
  kept.clear();
  for (auto& [work, keep] : finished) {
    if (work->abandoned()) keep.release();
  }
}

class PyWork {
 public:
  PyWork(std::shared_ptr<Work> work, std::shared_ptr<Engine> engine, py::object keep,
         std::optional<std::uintptr_t> stream)
      : work_(std::move(work)), engine_(std::move(engine)), keep_(std::move(keep)), stream_(stream) {}
  PyWork(PyWork&&) = default;
  ~PyWork() {
    if (work_ == nullptr) return;
    work_->note_known();  // no caller will wait for it
    if (is_forked_child()) {
      keep_.release();
    } else if (!work_->done()) {
      engine_->wake();  // it may have been submitted without waking the engine, and its wait interrupted
      memory_in_use().emplace_back(work_, std::move(keep_));
    } else if (work_->abandoned()) {
      keep_.release();  // never freed: a library may still write there
    } else if (!ordered_ && is_in_use(*work_)) {
      memory_in_use().emplace_back(work_, std::move(keep_));
    }
  }

  bool done() const {
    if (!work_->done()) return false;
    work_->note_known();
    engine_->queue().begin_epoch();
    return true;
  }

  // On a GPU: waits until all work is queued. Then `stream` waits for the results; without a stream, this thread does.
  void wait(std::optional<std::uintptr_t> stream) {
    refuse_forked_child();
    bool done = work_->done();
    if (done) engine_->queue().begin_epoch();  // otherwise Engine::wait() does this
    for (bool help = true; !done; help = false) {
      {
        const py::gil_scoped_release release;
        done = engine_->wait(*work_, help);
        stay_out_of_ending_interpreter();
      }
      if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    const std::string& misfit = work_->result().misfit;
    wait_for_gpu(stream);
    if (!misfit.empty()) throw Error(ErrorKind::kInvalidArgument, misfit);
  }

  // The result of start_call(): the memory that was given or made for it, or a tensor over the core's memory.
  py::object outcome() {
    const auto memory = keep_.cast<py::tuple>();
    if (!py::object(memory[1]).is_none()) return memory[1];
    Result& result = work_->result();
    return tensor_over(std::move(result.buffers.at(0)), result.shapes.at(0), py::object(memory[0]).ptr());
  }

  // Returns the same list at each call, so callers need not keep it.
  py::list buffers() {
    if (!buffers_) {
      buffers_ = py::list();
      for (HostBuffer& buffer : work_->result().buffers) {
        buffers_->append(buffer.allocated() ? py::cast(std::move(buffer)) : py::none());
      }
    }
    return *buffers_;
  }

  py::list shapes() {
    py::list result;
    for (const Shape& shape : work_->result().shapes) result.append(py::tuple(py::cast(shape)));
    return result;
  }

  std::vector<std::int64_t> received_splits() { return work_->result().received_splits; }
  std::int64_t value() { return work_->result().value; }

 private:
  void wait_for_gpu(std::optional<std::uintptr_t> stream) {
    const EventPtr& output_ready = work_->output_ready();
    if (output_ready == nullptr) return;
    if (stream) {
      block_stream(output_ready, *stream);
    } else {
      const py::gil_scoped_release release;
      output_ready->block();
      stay_out_of_ending_interpreter();
    }
    // Memory returned to the stream that allocated it is reused only after that stream has waited.
    ordered_ |= !stream || stream == stream_;
    const std::string failure = engine_->failure();
    if (!failure.empty()) throw Error(ErrorKind::kAborted, failure);
  }

  std::shared_ptr<Work> work_;
  std::shared_ptr<Engine> engine_;
  py::object keep_;
  std::optional<std::uintptr_t> stream_;  // the stream that allocated the memory in keep_
  bool ordered_ = false;
  std::optional<py::list> buffers_;
};

}  // namespace

void stay_out_of_ending_interpreter() {
#if PY_VERSION_HEX >= 0x030D0000
  const auto ending = [] { return Py_IsFinalizing() != 0; };
#else
  const auto ending = [] { return _Py_IsFinalizing() != 0; };
#endif
  // The main thread ends the interpreter; it may wait in an object's __del__ and must not stop here.
  if (getpid() == gettid()) return;
  while (ending()) pause();
}

py::object wrap_work(std::shared_ptr<Work> work, std::shared_ptr<Engine> engine, py::object keep,
                     std::optional<std::uintptr_t> stream) {
  drop_unused_memory();
  return py::cast(PyWork(std::move(work), std::move(engine), std::move(keep), stream));
}

void wait_for(const py::object& work, std::optional<std::uintptr_t> stream) {
  if (py::isinstance<PyWork>(work)) {
    work.cast<PyWork&>().wait(stream);
  } else {
    work.attr("wait")(stream);
  }
}

void bind_work(py::module_& module) {
  py::class_<HostBuffer>(module, "Buffer", py::buffer_protocol())
      .def("__len__", &HostBuffer::size)
      .def_buffer([](HostBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(buffer.data()), static_cast<py::ssize_t>(buffer.size()));
      });
  py::class_<PyWork>(module, "Work")
      .def("done", &PyWork::done)
      .def("wait", &PyWork::wait, py::arg("stream") = py::none())
      .def("outcome", &PyWork::outcome)
      .def("buffers", &PyWork::buffers)
      .def("shapes", &PyWork::shapes)
      .def("received_splits", &PyWork::received_splits)
      .def("value", &PyWork::value);
}

}  // namespace sirtaki
