// The times of this process's batches on its GPU.
#pragma once

#include <pybind11/pybind11.h>

namespace sirtaki {

// Takes the times from now on, or no longer. Throws Error before init().
void time_gpu(bool on);

// ([(process set, planned, number of the batch, verb, bytes, begin, end), ...], batches whose work is not over). Times
// in nanoseconds of CLOCK_MONOTONIC.
pybind11::tuple gpu_times();

}  // namespace sirtaki
