// The functions of the CUDA driver library, loaded at run time. A process has one driver, and its streams and events
// are also those of the CUDA runtime, so that Sirtaki needs no CUDA runtime of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace sirtaki {

using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuModule = void*;
using CuFunction = void*;
using CuAddress = unsigned long long;
using CuDevice = int;

inline constexpr int kCuSuccess = 0;
inline constexpr int kCuOutOfMemory = 2;
inline constexpr int kCuNotReady = 600;
inline constexpr int kCuAttributeMultiprocessors = 16;
inline constexpr int kCuAttributeMajor = 75;
inline constexpr int kCuAttributeMinor = 76;
inline constexpr int kCuCaptureModeRelaxed = 2;
inline constexpr unsigned int kCuStreamNonBlocking = 1;
inline constexpr unsigned int kCuEventDefault = 0;
inline constexpr unsigned int kCuEventDisableTiming = 2;
inline constexpr unsigned int kCuHostPortable = 1;

struct CudaDriver {
  int (*Init)(unsigned int);
  int (*GetErrorName)(int, const char**);
  int (*GetErrorString)(int, const char**);
  int (*DeviceGetCount)(int*);
  int (*DeviceGet)(CuDevice*, int);
  int (*DeviceGetName)(char*, int, CuDevice);
  int (*DeviceGetUuid)(unsigned char*, CuDevice);
  int (*DeviceGetAttribute)(int*, int, CuDevice);
  int (*PrimaryRetain)(CuContext*, CuDevice);
  int (*CtxPushCurrent)(CuContext);
  int (*CtxPopCurrent)(CuContext*);
  int (*CtxGetStreamPriorityRange)(int*, int*);
  int (*MemAlloc)(CuAddress*, std::size_t);
  int (*MemFree)(CuAddress);
  int (*MemGetInfo)(std::size_t*, std::size_t*);
  int (*MemHostAlloc)(void**, std::size_t, unsigned int);
  int (*MemFreeHost)(void*);
  int (*MemcpyAsync)(CuAddress, CuAddress, std::size_t, CuStream);
  int (*StreamCreateWithPriority)(CuStream*, unsigned int, int);
  int (*StreamDestroy)(CuStream);
  int (*StreamWaitEvent)(CuStream, CuEvent, unsigned int);
  int (*StreamIsCapturing)(CuStream, int*);
  int (*ThreadExchangeStreamCaptureMode)(int*);
  int (*EventCreate)(CuEvent*, unsigned int);
  int (*EventDestroy)(CuEvent);
  int (*EventRecord)(CuEvent, CuStream);
  int (*EventQuery)(CuEvent);
  int (*EventSynchronize)(CuEvent);
  int (*EventElapsedTime)(float*, CuEvent, CuEvent);  // in milliseconds
  // From CUDA 12.5 on; null in an older driver.
  int (*CtxRecordEvent)(CuContext, CuEvent);
  int (*CtxWaitEvent)(CuContext, CuEvent);
  int (*ModuleLoadData)(CuModule*, const void*);
  int (*ModuleGetFunction)(CuFunction*, CuModule, const char*);
  int (*LaunchKernel)(CuFunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                      unsigned int, CuStream, void**, void**);

  // Throws Error(kAborted) with the driver's message.
  void check(int result, const char* call) const;
};

// Loads and initialises it. Throws Error(kPrecondition) with the loader's or the driver's message.
std::shared_ptr<const CudaDriver> load_cuda_driver();

}  // namespace sirtaki
