// The flight recorder for Python.
#include <pybind11/stl.h>

#include "core/bindings.h"
#include "core/process.h"
#include "core/recorder/gpu_times.h"
#include "core/recorder/nvtx.h"
#include "recorder/step_watch.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// Python treats a cursor as a number; it holds those of all rings.
FlightRecorder::Cursor cursor_of(const py::int_& number) {
  FlightRecorder::Cursor cursor{};
  const py::bytes bytes = number.attr("to_bytes")(sizeof(cursor), "little");
  std::memcpy(cursor.data(), std::string_view(bytes).data(), sizeof(cursor));
  return cursor;
}

py::object number_of(const FlightRecorder::Cursor& cursor) {
  const py::bytes bytes(reinterpret_cast<const char*>(cursor.data()), sizeof(cursor));
  return py::type::of(py::int_()).attr("from_bytes")(bytes, "little");
}

py::tuple records(const py::int_& since) {
  const FlightRecorder* const recorder = find_recorder();
  if (recorder == nullptr) return py::make_tuple(py::bytes(), since, 0);
  const FlightRecorder::Cursor cursor = cursor_of(since);
  FlightRecorder::Reading reading;
  {
    const py::gil_scoped_release release;
    reading = recorder->read(cursor);
  }
  const py::bytes bytes(reinterpret_cast<const char*>(reading.records.data()), reading.records.size() * sizeof(Record));
  return py::make_tuple(bytes, number_of(reading.next), reading.lost);
}

void record_names(bool on) {
  if (FlightRecorder* const recorder = find_recorder()) recorder->collect_names(on);
}

std::map<std::uint32_t, std::string> recorded_names() {
  const FlightRecorder* const recorder = find_recorder();
  return recorder == nullptr ? std::map<std::uint32_t, std::string>() : recorder->names();
}

py::dict dict_of(const StepTimes& times) {
  py::dict result;
  result["length"] = times.length;
  result["late"] = times.wait.late;
  result["agreement"] = times.wait.agreement;
  result["queue"] = times.wait.queue;
  result["copy"] = times.wait.copy;
  result["wire"] = times.wait.wire;
  result["host"] = times.wait.host;
  result["exchange"] = times.exchange;
  result["hidden"] = times.hidden;
  result["delay"] = times.delay;
  return result;
}

py::object step_times() {
  StepWatch* const watch = find_step_watch();
  if (watch == nullptr) return py::none();
  StepWatch::Times times;
  {
    const py::gil_scoped_release release;
    times = watch->times();
  }
  py::dict last;
  for (const auto& [rank, counted] : times.divider.last_ranks()) {
    last[py::int_(rank)] = py::make_tuple(counted.steps, counted.lateness);
  }
  py::dict result;
  result["steps"] = times.divider.steps();
  result["total"] = dict_of(times.divider.total());
  result["latest"] = dict_of(times.divider.latest());
  result["open"] = dict_of(times.divider.open());
  result["last"] = last;
  result["lost"] = times.lost;
  return result;
}

}  // namespace

void bind_recorder(py::module_& module) {
  module.attr("RECORD_KINDS") = py::tuple(py::cast(kRecordKindNames));
  module.def("records", &records, py::arg("since") = 0);
  module.def("record_names", &record_names, py::arg("on"));
  module.def("recorded_names", &recorded_names);
  module.def("step_times", &step_times);
  module.def("mark_ranges", &mark_ranges, py::arg("libraries"), py::call_guard<py::gil_scoped_release>());
  module.def("time_gpu", &time_gpu, py::arg("on"), py::call_guard<py::gil_scoped_release>());
  module.def("gpu_times", &gpu_times);
  module.def("clock_offset_ns", [] {
    const ClockDifference clocks = engine_for_constants()->clock_difference();
    return std::pair(clocks.offset.count(), clocks.error.count());
  });
}

}  // namespace sirtaki
