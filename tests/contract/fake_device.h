// A GPU that is none: its memory is the host's, its streams are threads that do what is queued in order, a moment
// later. Whoever forgets to wait reads what is not there yet.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace sirtaki::contract {

struct FakeHardware {
  int number = 0;
  std::string identity = "fake 0";
  std::string lacks_kernels;                  // as Device::lacks_kernels()
  std::size_t memory = std::size_t{1} << 40;  // bytes that one allocation may have
};

class FakeDevice : public Device {
 public:
  // The one whose with_context() this thread is in.
  static FakeDevice* current();
  // Queues a call of the test's own.
  virtual void call(Stream stream, std::function<void()> body) = 0;
  // From now on what planes ask of it throws Error(kAborted).
  virtual void fail() = 0;
};

std::unique_ptr<FakeDevice> make_fake_device(FakeHardware hardware = {});

}  // namespace sirtaki::contract
