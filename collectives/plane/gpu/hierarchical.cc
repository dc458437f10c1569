#include "plane/gpu/hierarchical.h"

#include "base/error.h"
#include "math/kernels.h"
#include "plane/host_layout.h"
#include "plane/nccl/nccl_reduction.h"
#include "plane/pieces.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

// Largest size of the packed buffer. Its slices are sent between hosts in pieces, several at a time.
constexpr std::int64_t kRailPieceBytes = std::int64_t{64} << 20;

}  // namespace

std::unique_ptr<HostLevels> make_host_levels(Transport& transport, const std::vector<int>& hosts,
                                             const MakeRail& make_rail, std::string& why) {
  const HostLayout levels = host_layout_of(transport.rank(), hosts);
  if (levels.host_count < 2) return nullptr;
  if (!levels.equal) {
    why = "the hosts have different numbers of ranks";
    return nullptr;
  }
  auto result = std::make_unique<HostLevels>();
  result->host = transport.split(levels.host);
  result->rail = make_rail(levels.rail);
  return result;
}

HierarchicalNccl::HierarchicalNccl(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream,
                                   const HostLevels& levels, const NcclMembers& host_members, bool mpi)
    : device_(device),
      stream_(stream),
      local_rank_(host_members.rank),
      local_size_(host_members.size),
      kernels_(host_members.kernels),
      rail_(*levels.rail.plane),
      nccl_(std::move(library), device, stream, host_members),
      staged_(device, stream, levels.rail.transport->rank(), {levels.rail.plane.get()}) {
  if (mpi) mpi_ = std::make_unique<MpiGpuCollectives>(*levels.rail.gpu_memory, device, stream, kernels_);
}

bool HierarchicalNccl::can_reduce(const Reduction& reduction) const {
  if (!kernels_ || reduction.op == ReduceOp::kAdasum || needs_fold(reduction)) return false;
  const Reduction plain = between(reduction);
  return mpi_ != nullptr ? mpi_->can_reduce(plain, 0) : rail_.supports(query(plain, 0));
}

Reduction HierarchicalNccl::between(const Reduction& reduction) {
  return {.dtype = nccl_wire(reduction), .op = reduction.op};
}

PlaneQuery HierarchicalNccl::query(const Reduction& plain, std::int64_t count) {
  return {.verb = Verb::kAllreduce,
          .dtype = plain.dtype,
          .op = plain.asked(),
          .bytes = count * static_cast<std::int64_t>(size_of(plain.dtype))};
}

std::byte* HierarchicalNccl::buffer_of(std::size_t bytes) {
  if (buffer_.size() >= bytes) return buffer_.data();
  if (buffer_.data() != nullptr) device_.record(stream_)->block();  // queued work uses the old buffer
  buffer_ = {};
  buffer_ = device_.allocate(bytes);
  if (buffer_.data() != nullptr) return buffer_.data();
  throw Error(ErrorKind::kAborted, "gpu:" + std::to_string(device_.number()) + " has no room for a buffer of " +
                                       std::to_string(bytes) + " bytes (" + device_.free_memory() +
                                       "). Leave memory free: a smaller batch, or a limit for the framework's own "
                                       "pool.");
}

Task HierarchicalNccl::between_hosts(const Reduction& reduction, Segment slice) {
  const std::span<const Segment> segments(&slice, 1);
  if (mpi_ != nullptr) {
    co_await mpi_->allreduce(reduction, segments);
    co_return;
  }
  co_await staged_.allreduce(query(reduction, slice.count), reduction, segments);
}

Task HierarchicalNccl::allreduce(Reduction reduction, std::span<const Segment> segments) {
  const ReductionSteps steps = steps_of_library(reduction);
  const Reduction plain = between(reduction);
  const DType wire = plain.dtype;
  const std::size_t size = size_of(reduction.dtype);
  const std::size_t wire_size = size_of(wire);
  PieceWalk walk(segments, {.piece = kRailPieceBytes / static_cast<std::int64_t>(wire_size), .direct = kPackAll});
  for (Piece piece; walk.next(piece);) {
    // Slices of equal length, each at a multiple of 16 bytes; the padding is never read.
    const std::int64_t unit = std::int64_t{16} * local_size_;
    const std::int64_t whole = (piece.count + unit - 1) / unit * unit;
    std::byte* buffer = buffer_of(static_cast<std::size_t>(whole) * wire_size);
    std::vector<Part> in, out;
    walk.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t place) {
      std::byte* packed = buffer + static_cast<std::size_t>(place) * wire_size;
      if (segment.in == nullptr) {  // a rank that has joined
        device_.fill_identity(wire, reduction.op, packed, count, stream_);
        return;
      }
      const std::size_t begin = static_cast<std::size_t>(from) * size;
      in.push_back({static_cast<const std::byte*>(segment.in) + begin, packed, count});
      out.push_back({packed, static_cast<std::byte*>(segment.out) + begin, count});
    });
    device_.convert(wire, reduction.dtype, in, steps.before, stream_);
    const std::int64_t part = whole / local_size_;
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(local_size_), part);
    std::byte* own = buffer + static_cast<std::size_t>(local_rank_ * part) * wire_size;
    const Spread apart{buffer, own, counts};
    co_await nccl_.reducescatter(plain, apart);
    co_await between_hosts(plain, {own, own, part});
    const Spread together{own, buffer, counts};
    co_await nccl_.allgather(wire_size, together);
    device_.convert(reduction.dtype, wire, out, steps.after, stream_);
  }
}

}  // namespace sirtaki
