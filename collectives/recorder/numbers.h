// What a rank has counted since init, for `sirtakirun top` and for Prometheus.
#pragma once

#include <cstdint>
#include <string>

#include "recorder/step_watch.h"

namespace sirtaki {

// As JSON, with the names of docs/timeline.md. `bytes`: of this rank's tensors in collectives. Any thread.
std::string numbers_of(StepWatch& watch, std::uint64_t bytes);

}  // namespace sirtaki
