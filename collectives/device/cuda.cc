#include "device/cuda.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "device/cuda_kernels.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

CuAddress address(const void* memory) { return static_cast<CuAddress>(reinterpret_cast<std::uintptr_t>(memory)); }

// Makes a context current within a scope, in a capture mode that does not disturb a graph capture in another thread.
// Destructors must not throw: a context that was pushed can be popped.
class Current {
 public:
  Current(const CudaDriver& driver, CuContext context) : driver_(driver) {
    driver_.check(driver_.CtxPushCurrent(context), "cuCtxPushCurrent");
    driver_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Current() {
    driver_.ThreadExchangeStreamCaptureMode(&mode_);
    CuContext popped = nullptr;
    driver_.CtxPopCurrent(&popped);
  }

 private:
  const CudaDriver& driver_;
  int mode_ = kCuCaptureModeRelaxed;
};

// Events that exist and are not in use.
class EventPool {
 public:
  EventPool(const CudaDriver& driver, CuContext context, unsigned int flags)
      : driver_(driver), context_(context), flags_(flags) {}

  CuEvent take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        const CuEvent event = idle_.back();
        idle_.pop_back();
        return event;
      }
    }
    const Current current(driver_, context_);
    CuEvent event = nullptr;
    driver_.check(driver_.EventCreate(&event, flags_), "cuEventCreate");
    return event;
  }

  void put_back(CuEvent event) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(event);
  }

 private:
  const CudaDriver& driver_;
  CuContext context_;
  unsigned int flags_;
  std::mutex mutex_;
  std::vector<CuEvent> idle_;
};

// A waiting stream keeps the point as recorded when the wait was queued, so the event can be recorded again.
class CudaEvent final : public Event {
 public:
  CudaEvent(const CudaDriver& driver, EventPool& pool, CuContext context, Stream stream, std::uint64_t number)
      : driver_(driver), pool_(pool), context_(context), stream_(stream), number_(number), event_(pool.take()) {}
  ~CudaEvent() override { pool_.put_back(event_); }

  void record() { driver_.check(driver_.EventRecord(event_, stream_), "cuEventRecord"); }

  Stream stream() const override { return stream_; }
  std::uint64_t number() const override { return number_; }

  bool reached() override {
    const Current current(driver_, context_);
    const int result = driver_.EventQuery(event_);
    if (result == kCuNotReady) return false;
    driver_.check(result, "work queued on the GPU");
    return true;
  }

  void block_stream(Stream stream) override {
    if (stream == stream_) return;
    const Current current(driver_, context_);
    driver_.check(driver_.StreamWaitEvent(stream, event_, 0), "cuStreamWaitEvent");
  }

  void record_all() {
    if (driver_.CtxRecordEvent == nullptr || driver_.CtxWaitEvent == nullptr) {
      throw Error(ErrorKind::kPrecondition, "the CUDA driver is older than 12.5 and has no cuCtxRecordEvent");
    }
    driver_.check(driver_.CtxRecordEvent(context_, event_), "cuCtxRecordEvent");
  }

  void block_all_streams() override {
    const Current current(driver_, context_);
    driver_.check(driver_.CtxWaitEvent(context_, event_), "cuCtxWaitEvent");
  }

  void block() override {
    const Current current(driver_, context_);
    driver_.check(driver_.EventSynchronize(event_), "work queued on the GPU");
  }

  CuEvent handle() const { return event_; }

 private:
  const CudaDriver& driver_;
  EventPool& pool_;
  CuContext context_;
  Stream stream_;
  std::uint64_t number_;
  CuEvent event_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int number, CuDevice device, CuContext context,
             std::string identity, FindNvrtc compiler)
      : driver_(std::move(driver)),
        number_(number),
        device_(device),
        context_(context),
        identity_(std::move(identity)),
        find_compiler_(std::move(compiler)),
        events_(*driver_, context, kCuEventDisableTiming),
        timed_events_(*driver_, context, kCuEventDefault) {}

  int number() const override { return number_; }
  const std::string& identity() const override { return identity_; }

  void with_context(const std::function<void()>& calls) override {
    const Current current(*driver_, context_);
    calls();
  }

  Stream make_stream() override {
    const Current current(*driver_, context_);
    int least = 0;
    int greatest = 0;
    driver_->check(driver_->CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
    CuStream stream = nullptr;
    driver_->check(driver_->StreamCreateWithPriority(&stream, kCuStreamNonBlocking, greatest),
                   "cuStreamCreateWithPriority");
    return stream;
  }

  void destroy(Stream stream) override {
    release([&] { driver_->StreamDestroy(stream); });
  }

  EventPtr record(Stream stream) override { return record(events_, stream); }
  EventPtr record_timed(Stream stream) override { return record(timed_events_, stream); }

  std::chrono::nanoseconds elapsed(const Event& from, const Event& to) override {
    const Current current(*driver_, context_);
    float milliseconds = 0;
    const auto handle = [](const Event& event) { return static_cast<const CudaEvent&>(event).handle(); };
    driver_->check(driver_->EventElapsedTime(&milliseconds, handle(from), handle(to)), "cuEventElapsedTime");
    return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6));
  }

  EventPtr record_all() override {
    // Stands for all streams: no stream has the context's address, and event numbers grow over all streams.
    const auto event = std::make_shared<CudaEvent>(*driver_, events_, context_, context_, ++recorded_);
    const Current current(*driver_, context_);
    event->record_all();
    return event;
  }

  bool is_capturing(Stream stream) override {
    const Current current(*driver_, context_);
    int status = 0;
    driver_->check(driver_->StreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    return status != 0;
  }

  DeviceMemory allocate(std::size_t bytes) override {
    const Current current(*driver_, context_);
    CuAddress memory = 0;
    const int result = driver_->MemAlloc(&memory, bytes);
    if (result == kCuOutOfMemory) return {};
    driver_->check(result, "cuMemAlloc");
    auto* data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(memory));
    return {data, bytes, [this](std::byte* old) { release([&] { driver_->MemFree(address(old)); }); }};
  }

  DeviceMemory allocate_pinned(std::size_t bytes) override {
    const Current current(*driver_, context_);
    void* memory = nullptr;
    const int result = driver_->MemHostAlloc(&memory, bytes, kCuHostPortable);
    if (result == kCuOutOfMemory) return {};
    driver_->check(result, "cuMemHostAlloc");
    auto* data = static_cast<std::byte*>(memory);
    return {data, bytes, [this](std::byte* old) { release([&] { driver_->MemFreeHost(old); }); }};
  }

  void copy(void* out, const void* in, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const Current current(*driver_, context_);
    driver_->check(driver_->MemcpyAsync(address(out), address(in), bytes, stream), "cuMemcpyAsync");
  }

  std::string free_memory() override {
    const Current current(*driver_, context_);
    std::size_t free = 0;
    std::size_t total = 0;
    driver_->check(driver_->MemGetInfo(&free, &total), "cuMemGetInfo");
    return std::to_string(free >> 20) + " of " + std::to_string(total >> 20) + " MiB are free";
  }

  const std::string& lacks_kernels() override {
    std::call_once(kernels_made_, [this] { make_kernels(); });
    return lacks_kernels_;
  }

  void convert(DType to, DType from, std::span<const Part> parts, Scale scale, Stream stream) override {
    const Current current(*driver_, context_);
    kernels_->convert(to, from, parts, scale, stream);
  }

  void fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count, Stream stream) override {
    const Current current(*driver_, context_);
    if (kernels_ != nullptr) return kernels_->fill_identity(dtype, op, out, count, stream);
    fill_from_host(dtype, op, static_cast<std::byte*>(out), count, stream);
  }

 private:
  EventPtr record(EventPool& pool, Stream stream) {
    const auto event = std::make_shared<CudaEvent>(*driver_, pool, context_, stream, ++recorded_);
    const Current current(*driver_, context_);
    event->record();
    return event;
  }

  // At process exit the driver may be unloaded before the last owner; then nothing needs to be freed.
  template <typename Call>
  void release(const Call& call) noexcept {
    try {
      const Current current(*driver_, context_);
      call();
    } catch (const Error&) {
    }
  }

  // Whether the compiler works with this GPU and driver shows when it has made a kernel.
  void make_kernels() {
    auto compiler = find_compiler_(lacks_kernels_);
    if (compiler == nullptr) {
      lacks_kernels_ = "no NVRTC: " + lacks_kernels_;
      return;
    }
    lacks_kernels_.clear();
    try {
      const Current current(*driver_, context_);
      auto kernels = std::make_unique<CudaKernels>(*driver_, std::move(compiler), device_);
      const DeviceMemory word = allocate(16);
      if (word.data() == nullptr) throw Error(ErrorKind::kAborted, "no memory left");
      kernels->fill_identity(DType::kFloat32, ReduceOp::kSum, word.data(), 2, nullptr);
      const Part part{word.data(), word.data() + 8, 1};
      kernels->convert(DType::kFloat32, DType::kFloat32, {&part, 1}, 1.0, nullptr);
      record(nullptr)->block();
      kernels_ = std::move(kernels);
    } catch (const Error& error) {
      lacks_kernels_ = error.what();
    }
  }

  void fill_from_host(DType dtype, ReduceOp op, std::byte* out, std::int64_t count, Stream stream) {
    const std::size_t size = size_of(dtype);
    const std::int64_t most = std::min<std::int64_t>(count, 1 << 20);
    if (count == 0) return;
    const DeviceMemory source = allocate_pinned(static_cast<std::size_t>(most) * size);
    if (source.data() == nullptr) throw Error(ErrorKind::kAborted, "no pinned host memory left");
    sirtaki::fill_identity(dtype, op, source.data(), most);
    for (std::int64_t done = 0; done < count; done += most) {
      const auto bytes = static_cast<std::size_t>(std::min(most, count - done)) * size;
      copy(out + static_cast<std::size_t>(done) * size, source.data(), bytes, stream);
    }
    record(stream)->block();
  }

  std::shared_ptr<const CudaDriver> driver_;
  int number_;
  CuDevice device_;
  CuContext context_;
  std::string identity_;
  FindNvrtc find_compiler_;
  EventPool events_;
  EventPool timed_events_;
  std::atomic<std::uint64_t> recorded_{0};
  std::once_flag kernels_made_;
  std::string lacks_kernels_;
  std::unique_ptr<CudaKernels> kernels_;
};

// The GPU's UUID, which is the same in containers and under CUDA_VISIBLE_DEVICES.
std::string identity_of(const CudaDriver& driver, CuDevice device) {
  std::array<unsigned char, 16> uuid{};
  driver.check(driver.DeviceGetUuid(uuid.data(), device), "cuDeviceGetUuid");
  std::array<char, 128> name{};
  driver.check(driver.DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), "cuDeviceGetName");
  std::string text = std::string(name.data()) + " GPU-";
  constexpr const char* kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(std::shared_ptr<const CudaDriver> driver, int number, FindNvrtc compiler) {
  int count = 0;
  driver->check(driver->DeviceGetCount(&count), "cuDeviceGetCount");
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::kPrecondition,
                "there is no gpu:" + std::to_string(number) + "; this process sees " + std::to_string(count) + " GPUs");
  }
  CuDevice device = 0;
  driver->check(driver->DeviceGet(&device, number), "cuDeviceGet");
  CuContext context = nullptr;
  driver->check(driver->PrimaryRetain(&context, device), "cuDevicePrimaryCtxRetain");
  std::string identity = identity_of(*driver, device);
  return std::make_unique<CudaDevice>(std::move(driver), number, device, context, std::move(identity),
                                      std::move(compiler));
}

const CudaDriver& CudaDevices::driver() {
  if (driver_ == nullptr) driver_ = load_cuda_driver();
  return *driver_;
}

int CudaDevices::count() {
  const std::lock_guard lock(mutex_);
  int count = 0;
  driver().check(driver().DeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

Device& CudaDevices::at(int number) {
  const std::lock_guard lock(mutex_);
  driver();
  std::unique_ptr<Device>& device = devices_[number];
  if (device == nullptr) device = make_cuda_device(driver_, number, compiler_);
  return *device;
}

}  // namespace sirtaki
