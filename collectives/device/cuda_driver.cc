#include "device/cuda_driver.h"

#include <stdexcept>

#include "base/error.h"
#include "loader/symbol_reader.h"

namespace sirtaki {
namespace {

CudaDriver read(SymbolReader& symbols) {
  CudaDriver driver{};
  symbols.read(driver.Init, "cuInit");
  symbols.read(driver.GetErrorName, "cuGetErrorName");
  symbols.read(driver.GetErrorString, "cuGetErrorString");
  symbols.read(driver.DeviceGetCount, "cuDeviceGetCount");
  symbols.read(driver.DeviceGet, "cuDeviceGet");
  symbols.read(driver.DeviceGetName, "cuDeviceGetName");
  symbols.read(driver.DeviceGetUuid, "cuDeviceGetUuid");
  symbols.read(driver.DeviceGetAttribute, "cuDeviceGetAttribute");
  symbols.read(driver.PrimaryRetain, "cuDevicePrimaryCtxRetain");
  symbols.read(driver.CtxPushCurrent, "cuCtxPushCurrent_v2");
  symbols.read(driver.CtxPopCurrent, "cuCtxPopCurrent_v2");
  symbols.read(driver.CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange");
  symbols.read(driver.MemAlloc, "cuMemAlloc_v2");
  symbols.read(driver.MemFree, "cuMemFree_v2");
  symbols.read(driver.MemGetInfo, "cuMemGetInfo_v2");
  symbols.read(driver.MemHostAlloc, "cuMemHostAlloc");
  symbols.read(driver.MemFreeHost, "cuMemFreeHost");
  symbols.read(driver.MemcpyAsync, "cuMemcpyAsync");
  symbols.read(driver.StreamCreateWithPriority, "cuStreamCreateWithPriority");
  symbols.read(driver.StreamDestroy, "cuStreamDestroy_v2");
  symbols.read(driver.StreamWaitEvent, "cuStreamWaitEvent");
  symbols.read(driver.StreamIsCapturing, "cuStreamIsCapturing");
  symbols.read(driver.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  symbols.read(driver.EventCreate, "cuEventCreate");
  symbols.read(driver.EventDestroy, "cuEventDestroy_v2");
  symbols.read(driver.EventRecord, "cuEventRecord");
  symbols.read(driver.EventQuery, "cuEventQuery");
  symbols.read(driver.EventSynchronize, "cuEventSynchronize");
  symbols.read(driver.EventElapsedTime, "cuEventElapsedTime");
  symbols.read(driver.ModuleLoadData, "cuModuleLoadData");
  symbols.read(driver.ModuleGetFunction, "cuModuleGetFunction");
  symbols.read(driver.LaunchKernel, "cuLaunchKernel");
  return driver;
}

std::string words(const CudaDriver& driver, int result) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver.GetErrorName(result, &name);
  driver.GetErrorString(result, &text);
  return std::string(name != nullptr ? name : "an unknown error") + (text != nullptr ? std::string(", ") + text : "");
}

}  // namespace

void CudaDriver::check(int result, const char* call) const {
  if (result != kCuSuccess) [[unlikely]]
    throw Error(ErrorKind::kAborted, std::string(call) + " failed: " + words(*this, result));
}

std::shared_ptr<const CudaDriver> load_cuda_driver() {
  try {
    const SharedLibrary library = SharedLibrary::open("libcuda.so.1");
    SymbolReader symbols(library);
    CudaDriver driver = read(symbols);
    symbols.require_all(library.path());
    SymbolReader newer(library);
    newer.read(driver.CtxRecordEvent, "cuCtxRecordEvent");
    newer.read(driver.CtxWaitEvent, "cuCtxWaitEvent");
    const int result = driver.Init(0);
    if (result != kCuSuccess) throw std::runtime_error("cuInit: " + words(driver, result));
    return std::make_shared<const CudaDriver>(driver);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kPrecondition, std::string("the CUDA driver cannot be used: ") + error.what());
  }
}

}  // namespace sirtaki
