// Averages for which adding up in the dtype of the elements is not enough. Inputs are those of reduce_inputs(): the
// same elements of every rank, from a byte of each on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "math/reduction.h"

namespace sirtaki {

// out[i] of integers, added up without overflow and truncated toward zero. `out` is where element i of the inputs is.
void average_integers(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                      std::int64_t count);

// `results` are averages in `wire`, float32 or float64. Those that are not finite although all inputs are, since their
// sum was out of range, are calculated anew.
void average_again(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                   std::byte* results, std::int64_t count);

}  // namespace sirtaki
