// The GPUs of this process and the libraries for them, each loaded when it is first needed.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/bindings.h"
#include "core/process.h"
#include "device/cuda.h"
#include "device/nvrtc.h"
#include "plane/nccl/nccl_library.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

struct Libraries {
  std::mutex mutex;
  std::vector<std::string> nccl_paths;
  std::vector<std::string> nvrtc_paths;
  std::shared_ptr<const NcclLibrary> nccl;
};

Libraries& libraries() {
  static auto* const instance = new Libraries;  // never destroyed: other threads may outlive main()
  return *instance;
}

std::shared_ptr<const Nvrtc> find_nvrtc(std::string& why) {
  const std::lock_guard lock(libraries().mutex);
  return load_nvrtc(libraries().nvrtc_paths, why);
}

CudaDevices& devices() {
  static auto* const instance = new CudaDevices(&find_nvrtc);
  return *instance;
}

std::atomic<int>& usual_gpu() {
  static std::atomic<int> number{-1};
  return number;
}

void set_libraries(std::vector<std::string> nccl, std::vector<std::string> nvrtc) {
  const std::lock_guard lock(libraries().mutex);
  libraries().nccl_paths = std::move(nccl);
  libraries().nvrtc_paths = std::move(nvrtc);
}

}  // namespace

std::shared_ptr<const NcclLibrary> find_nccl(std::string& why) {
  const std::lock_guard lock(libraries().mutex);
  if (libraries().nccl == nullptr) libraries().nccl = load_nccl(libraries().nccl_paths, why);
  return libraries().nccl;
}

namespace {

// {part: its description, or the loader's message}.
std::map<std::string, std::string> info() {
  std::map<std::string, std::string> result;
  try {
    Device& device = gpu(0);
    result["CUDA"] = "gpu:0 is " + device.identity() + ", " + device.free_memory();
    const std::string& lacks = device.lacks_kernels();
    result["kernels"] = lacks.empty() ? "compiled at run time" : "none, so tensors are packed by copies: " + lacks;
  } catch (const Error& error) {
    result["CUDA"] = result["kernels"] = std::string("none usable: ") + error.what();
  }
  std::string why;
  const auto nccl = find_nccl(why);
  result["NCCL"] = nccl != nullptr ? nccl->version + ", " + nccl->path : "none: " + why;
  return result;
}

}  // namespace

Device& gpu(int number) { return devices().at(number); }

GpuOptions gpu_options(const Settings& settings, std::function<void(const std::string&)> log,
                       std::function<int()> local_rank) {
  GpuOptions options;
  options.devices = &gpu;
  options.usual = [local_rank = std::move(local_rank)] {
    const int named = usual_gpu().load();
    return named >= 0 ? named : local_rank() % std::max(devices().count(), 1);
  };
  options.load_nccl = &find_nccl;
  options.operations = settings.gpu_operations;
  options.log = std::move(log);
  options.dead_rank = [] { return engine_for_collective()->dead_rank(); };
  return options;
}

void bind_gpu(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("set_gpu_libraries", &set_libraries, py::arg("nccl"), py::arg("nvrtc"));
  module.def("set_usual_gpu", [](int number) { usual_gpu() = number; });
  module.def("gpu_info", &info, Release());
}

}  // namespace sirtaki
