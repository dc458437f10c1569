// Reduces the same elements of all ranks, with scaling and rounding, in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "math/reduction.h"

namespace sirtaki {

// out[i] = postscale * op(prescale * in[0][i], prescale * in[1][i], ...) / divisor, in the order of the inputs,
// calculated in wire_dtype() and rounded once; averages of integers are exact. An average of finite numbers is finite.
// All are of the reduction's dtype; out may be one of the inputs. The bits do not depend on where the elements lie.
void reduce_inputs(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                   std::int64_t count);

// The same, except that averages of integers are not supported. `out` is in the dtype `wire`, and is not an input.
void reduce_inputs_to_wire(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::byte* out,
                           std::int64_t count);

}  // namespace sirtaki
