// Averages whose sum can overflow the dtype in which it is calculated. The inputs are those of reduce_inputs(): the
// same elements of every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "math/reduction.h"

namespace sirtaki {

// out[i] for integers: summed without overflow, the quotient truncated toward zero. `out` may be one of the inputs.
void average_integers(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                      std::int64_t count);

// `results` are averages in `wire`, float32 or float64, of the elements from byte `offset` of each input on.
// Recalculates each result that is not finite although its inputs are, because their sum has overflowed.
void average_again(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                   std::byte* results, std::int64_t count);

}  // namespace sirtaki
