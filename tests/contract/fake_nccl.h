// NCCL's functions for ranks that are threads with fake devices. As NCCL they hang where ranks call different things,
// and making a communicator and its first group wait for all ranks.
#pragma once

#include <memory>
#include <string>

#include "fake_device.h"
#include "plane/nccl/nccl_library.h"

namespace sirtaki::contract {

// A device may lie where one lay whose communicators broke.
void mend_fake_nccl(FakeDevice& device);

std::shared_ptr<const NcclLibrary> fake_nccl(const std::string& version = "2.99.0");

// From now on every communicator of this device reports that a remote process is gone.
void break_fake_nccl(FakeDevice& device);

}  // namespace sirtaki::contract
