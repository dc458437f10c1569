// What a reduction does with the same elements of every rank, in one go.
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

// The same, but for averages of integers; out is in the dtype `wire`, and none of the inputs.
void reduce_inputs_to_wire(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::byte* out,
                           std::int64_t count);

}  // namespace sirtaki
