#include "math/reduce_inputs.h"

#include <algorithm>

#include "math/kernels.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kRoomBytes = 4096;  // two of them fit into the first cache beside what is read

struct alignas(64) Room {
  std::byte bytes[kRoomBytes];
};

// Of all ranks, `count` elements from byte `offset` on; through a room for the sum, so that `out`, which may be an
// input, is written last.
void fold_block(const Reduction& reduction, DType wire, std::span<const std::byte* const> in, std::size_t offset,
                std::byte* out, std::int64_t count) {
  Room sum;
  Room wide;
  const bool plain = wire == reduction.dtype && reduction.prescale == 1.0;
  std::size_t next = 1;
  if (plain && in.size() > 1) {
    reduce_to(wire, reduction.op, sum.bytes, in[0] + offset, in[1] + offset, count);
    next = 2;
  } else {
    convert(wire, sum.bytes, reduction.dtype, in[0] + offset, count, reduction.prescale);
  }
  for (; next < in.size(); ++next) {
    const std::byte* other = in[next] + offset;
    if (!plain) convert(wire, wide.bytes, reduction.dtype, other, count, reduction.prescale);
    reduce(wire, reduction.op, sum.bytes, plain ? other : wide.bytes, count);
  }
  convert(reduction.dtype, out + offset, wire, sum.bytes, count, reduction.postscale);
}

}  // namespace

void reduce_inputs(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                   std::int64_t count) {
  const DType wire = wire_dtype(reduction);
  const bool plain = wire == reduction.dtype && reduction.prescale == 1.0 && reduction.postscale == 1.0;
  if (plain && in.size() == 2) return reduce_to(wire, reduction.op, out, in[0], in[1], count);
  const std::int64_t block = kRoomBytes / static_cast<std::int64_t>(size_of(wire));
  for (std::int64_t done = 0; done < count; done += block) {
    const std::size_t offset = static_cast<std::size_t>(done) * size_of(reduction.dtype);
    fold_block(reduction, wire, in, offset, out, std::min(block, count - done));
  }
}

void reduce_inputs_to_wire(const Reduction& reduction, std::span<const std::byte* const> in, std::byte* out,
                           std::int64_t count) {
  const DType wire = wire_dtype(reduction);
  if (wire == reduction.dtype) {
    return reduce_inputs({.dtype = wire, .op = reduction.op, .prescale = reduction.prescale}, in, out, count);
  }
  const std::int64_t block = kRoomBytes / static_cast<std::int64_t>(size_of(wire));
  Room wide;
  for (std::int64_t done = 0; done < count; done += block) {
    const std::int64_t length = std::min(block, count - done);
    std::byte* sum = out + static_cast<std::size_t>(done) * size_of(wire);
    const std::size_t offset = static_cast<std::size_t>(done) * size_of(reduction.dtype);
    convert(wire, sum, reduction.dtype, in[0] + offset, length, reduction.prescale);
    for (const std::byte* other : in.subspan(1)) {
      convert(wire, wide.bytes, reduction.dtype, other + offset, length, reduction.prescale);
      reduce(wire, reduction.op, sum, wide.bytes, length);
    }
  }
}

}  // namespace sirtaki
