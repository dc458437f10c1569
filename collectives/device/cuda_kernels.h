// Sirtaki's own GPU kernels. Each is compiled at run time for the GPU at hand when it is first used.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "device/cuda_driver.h"
#include "device/device.h"
#include "device/nvrtc.h"

namespace sirtaki {

// The caller has made the GPU's context current.
class CudaKernels {
 public:
  CudaKernels(const CudaDriver& driver, std::shared_ptr<const Nvrtc> compiler, CuDevice device);

  void convert(DType to, DType from, std::span<const Part> parts, Scale scale, Stream stream);
  void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count, Stream stream);

 private:
  CuFunction conversion(DType to, DType from, bool scales);
  CuFunction filler(DType dtype);
  CuFunction build(const std::string& definitions, const char* name);

  const CudaDriver& driver_;
  std::shared_ptr<const Nvrtc> compiler_;
  int major_ = 0;
  int minor_ = 0;
  std::mutex mutex_;
  std::map<std::tuple<DType, DType, bool>, CuFunction> conversions_;
  std::map<DType, CuFunction> fillers_;
};

}  // namespace sirtaki
