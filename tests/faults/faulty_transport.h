// A transport that does what another does, but for one fault.
#pragma once

#include <memory>

#include "fault.h"
#include "transport/transport.h"

namespace sirtaki::faults {

// `progress` is that of the wrapped transport's rank; only if the fault is at that rank, something happens. Parts that
// are split off go wrong alike.
std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, const Fault& fault, int job_rank,
                                       std::shared_ptr<Progress> progress);

}  // namespace sirtaki::faults
