#include "core/recorder/gpu_times.h"

#include <pybind11/stl.h>

#include <memory>
#include <mutex>

#include "core/process.h"
#include "observer/gpu_times.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// Never deleted: an engine may call its observers until it has ended.
struct Times {
  std::mutex mutex;
  GpuTimes observer;
  std::weak_ptr<Engine> engine;  // that has this observer
};

Times& times() {
  static auto* const instance = new Times;
  return *instance;
}

}  // namespace

void time_gpu(bool on) {
  Times& own = times();
  const std::lock_guard lock(own.mutex);
  own.observer.switch_to(on);
  if (!on) return;
  const auto engine = engine_for_query();
  if (own.engine.lock() != engine) engine->observe(own.observer);
  own.engine = engine;
}

py::tuple gpu_times() {
  std::vector<GpuTime> taken;
  std::size_t waiting = 0;
  {
    const py::gil_scoped_release release;
    taken = times().observer.take(waiting);
  }
  py::list result;
  for (const GpuTime& time : taken) {
    const auto verb = static_cast<int>(time.verb);
    result.append(py::make_tuple(time.group, time.planned, time.number, verb, time.bytes, time.begin, time.end));
  }
  return py::make_tuple(result, waiting);
}

}  // namespace sirtaki
