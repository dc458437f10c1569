// NVIDIA GPUs through the CUDA driver library.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "device/nvrtc.h"

namespace sirtaki {

// `compiler` is called when the first kernel is needed.
using FindNvrtc = std::function<std::shared_ptr<const Nvrtc>(std::string& why)>;

// Uses the primary context, which the frameworks use too. Throws Error(kPrecondition) if there is no such GPU.
std::unique_ptr<Device> make_cuda_device(std::shared_ptr<const CudaDriver> driver, int number, FindNvrtc compiler);

// All GPUs of this process, each made at its first use; any thread may call. Never destroyed before the process ends.
class CudaDevices {
 public:
  explicit CudaDevices(FindNvrtc compiler) : compiler_(std::move(compiler)) {}
  Device& at(int number);
  int count();

 private:
  const CudaDriver& driver();

  std::mutex mutex_;
  FindNvrtc compiler_;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<int, std::unique_ptr<Device>> devices_;
};

}  // namespace sirtaki
