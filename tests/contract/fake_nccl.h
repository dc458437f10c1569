// NCCL's functions for ranks that are threads with fake devices. As those of a communicator that does not block they
// return before they are carried out, and as NCCL they hang where ranks call different things.
#pragma once

#include <memory>
#include <string>

#include "fake_device.h"
#include "plane/nccl_library.h"

namespace sirtaki::contract {

// Every thread that plays a rank names its device first.
void use_fake_nccl(FakeDevice& device);

std::shared_ptr<const NcclLibrary> fake_nccl(const std::string& version = "2.99.0");

// From now on every communicator of this thread's device reports that a remote process is gone.
void break_fake_nccl(FakeDevice& device);

}  // namespace sirtaki::contract
