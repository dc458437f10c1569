#include "math/reduce_inputs.h"

#include <algorithm>
#include <cstring>

#include "math/average.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kRoomBytes = 4096;  // two of them fit into the L1 cache together with the inputs

struct alignas(64) Block {
  std::byte bytes[kRoomBytes];
};

bool is_plain(const Reduction& reduction, DType wire) { return wire == reduction.dtype && reduction.prescale == 1.0; }

// Reduces `count` elements of all ranks, from byte `offset` on, into `result` in the dtype `wire`. `result` is not an
// input. Returns the scale that the caller must still apply. Floats are scaled while the last rank's are added. So an
// overflow is noticed before `out` of reduce_inputs(), which may be an input, is written.
Scale reduce_block(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                   std::byte* result, std::int64_t count) {
  Block wide;
  const Scale scale(reduction.postscale, reduction.divisor);
  const bool adds_floats = reduction.op == ReduceOp::kSum && (wire == DType::kFloat32 || wire == DType::kFloat64);
  const auto input = [&](std::size_t rank, std::byte* buffer) -> const std::byte* {
    if (is_plain(reduction, wire)) return in[rank] + offset;
    convert(wire, buffer, reduction.dtype, in[rank] + offset, count, reduction.prescale);
    return buffer;
  };
  const std::byte* sum = input(0, result);
  for (std::size_t r = 1; r < in.size(); ++r, sum = result) {
    const std::byte* other = input(r, wide.bytes);
    if (r + 1 == in.size() && adds_floats && !scale.is_one()) {
      const bool in_range = add_and_scale(wire, result, sum, other, count, scale.quotient());
      if (!in_range && reduction.averages()) average_again(reduction, wire, in, offset, result, count);
      return {};
    }
    reduce_to(wire, reduction.op, result, sum, other, count);
  }
  if (sum != result) std::memcpy(result, sum, static_cast<std::size_t>(count) * size_of(wire));
  return scale;
}

// Calls visit(byte of the inputs, first element, count) for each block.
template <typename Visit>
void for_each_block(const Reduction& reduction, DType wire, std::int64_t count, Visit visit) {
  const std::int64_t block = kRoomBytes / static_cast<std::int64_t>(size_of(wire));
  for (std::int64_t done = 0; done < count; done += block) {
    visit(static_cast<std::size_t>(done) * size_of(reduction.dtype), done, std::min(block, count - done));
  }
}

}  // namespace

void reduce_inputs(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                   std::int64_t count) {
  if (reduction.averages() && is_integer(reduction.dtype)) return average_integers(reduction, in, out, count);
  const DType wire = wire_dtype(reduction);
  const bool unscaled = reduction.postscale == 1.0 && reduction.divisor == 1;
  if (is_plain(reduction, wire) && unscaled && in.size() == 2) {
    return reduce_to(wire, reduction.op, out, in[0], in[1], count);
  }
  Block sum;
  for_each_block(reduction, wire, count, [&](std::size_t offset, std::int64_t, std::int64_t length) {
    const Scale rest = reduce_block(reduction, wire, in, offset, sum.bytes, length);
    convert(reduction.dtype, out + offset, wire, sum.bytes, length, rest);
  });
}

void reduce_inputs_to_wire(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::byte* out,
                           std::int64_t count) {
  for_each_block(reduction, wire, count, [&](std::size_t offset, std::int64_t first, std::int64_t length) {
    std::byte* result = out + static_cast<std::size_t>(first) * size_of(wire);
    const Scale rest = reduce_block(reduction, wire, in, offset, result, length);
    convert(wire, result, wire, result, length, rest);
  });
}

}  // namespace sirtaki
