#include "plane/gpu/mpi_gpu.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "math/kernels.h"
#include "plane/gpu/staging_buffers.h"
#include "plane/mpi/mpi_types.h"
#include "plane/pieces.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kMpiPieceBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMostElements = std::numeric_limits<int>::max() / 2;

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

class Operation final : public Pending {
 public:
  Operation(const MpiLibrary& mpi, MpiRequest request, int& in_flight)
      : mpi_(mpi), request_(request), in_flight_(in_flight) {}

  bool ready() override {
    if (!done_ && mpi_.test(request_)) {
      done_ = true;
      --in_flight_;
    }
    return done_;
  }

 private:
  const MpiLibrary& mpi_;
  MpiRequest request_;
  int& in_flight_;
  bool done_ = false;
};

}  // namespace

MpiGpuCollectives::MpiGpuCollectives(const MpiCommunicator& communicator, Device& device, Stream stream, bool kernels)
    : communicator_(communicator), device_(device), stream_(stream), rank_(communicator.rank()), kernels_(kernels) {}

MpiGpuCollectives::~MpiGpuCollectives() {
  if (in_flight_ == 0) return;
  in_.leak();
  out_.leak();
}

bool MpiGpuCollectives::can_move(std::int64_t bytes) const { return bytes <= kMostElements; }

bool MpiGpuCollectives::can_reduce(const Reduction& reduction, std::int64_t bytes) const {
  return kernels_ && library_has(reduction.asked(), reduction.dtype) && can_move(bytes);
}

PendingPtr MpiGpuCollectives::quiet() { return reached(device_.record(stream_)); }

PendingPtr MpiGpuCollectives::completion(MpiRequest request) {
  ++in_flight_;
  return std::make_unique<Operation>(communicator_.mpi(), request, in_flight_);
}

std::byte* MpiGpuCollectives::buffer_of(DeviceMemory& memory, std::size_t bytes) {
  if (memory.size() >= bytes) return memory.data();
  if (memory.data() != nullptr) device_.record(stream_)->block();
  memory = {};
  memory = device_.allocate(bytes);
  if (memory.data() != nullptr) return memory.data();
  throw Error(ErrorKind::kAborted, "gpu:" + std::to_string(device_.number()) + " has no room for a buffer of " +
                                       std::to_string(bytes) + " bytes (" + device_.free_memory() + ")");
}

Task MpiGpuCollectives::allreduce(Reduction reduction, std::span<const Segment> segments) {
  const ReductionSteps steps = steps_of_library(reduction);
  const DType wire = steps.wire;
  const std::size_t wire_size = size_of(wire);
  const std::size_t size = size_of(reduction.dtype);
  PieceWalk walk(segments, {.piece = kMpiPieceBytes / static_cast<std::int64_t>(wire_size), .direct = kPackAll});
  for (Piece piece; walk.next(piece);) {
    std::byte* buffer = buffer_of(in_, static_cast<std::size_t>(piece.count) * wire_size);
    std::vector<Part> in, out;
    walk.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t place) {
      std::byte* packed = at(buffer, place, wire_size);
      if (segment.in == nullptr) {  // a rank that has joined
        device_.fill_identity(wire, reduction.op, packed, count, stream_);
        return;
      }
      in.push_back({at(segment.in, from, size), packed, count});
      out.push_back({packed, at(segment.out, from, size), count});
    });
    device_.convert(wire, reduction.dtype, in, steps.before, stream_);
    co_await quiet();
    co_await completion(communicator_.mpi().iallreduce(buffer, buffer, to_mpi_count(piece.count), mpi_type(wire),
                                                       mpi_op(reduction), communicator_.comm()));
    device_.convert(reduction.dtype, wire, out, steps.after, stream_);
  }
}

Task MpiGpuCollectives::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  const MpiUnit unit = mpi_unit(element_size);
  for (const Segment& segment : segments) {
    if (rank_ == root && segment.in != segment.out && segment.count > 0) {
      device_.copy(segment.out, segment.in, static_cast<std::size_t>(segment.count) * element_size, stream_);
    }
  }
  co_await quiet();
  const std::int64_t most = kMostElements / unit.per_element;
  for (const Segment& segment : segments) {
    for (std::int64_t done = 0; done < segment.count; done += most) {
      const std::int64_t count = std::min(most, segment.count - done) * unit.per_element;
      co_await completion(communicator_.mpi().ibcast(at(segment.out, done, element_size), to_mpi_count(count),
                                                     unit.type, root, communicator_.comm()));
    }
  }
}

Task MpiGpuCollectives::allgather(std::size_t element_size, const Spread& spread) {
  if (sum(spread.counts) == 0) co_return;
  const MpiUnit unit = mpi_unit(element_size);
  const MpiLayout layout(spread.counts, unit.per_element);
  co_await quiet();
  co_await completion(communicator_.mpi().iallgatherv(spread.in, layout.counts[static_cast<std::size_t>(rank_)],
                                                      spread.out, layout.counts.data(), layout.displacements.data(),
                                                      unit.type, communicator_.comm()));
}

Task MpiGpuCollectives::reducescatter(Reduction reduction, const Spread& spread) {
  const std::int64_t total = sum(spread.counts);
  if (total == 0) co_return;
  const ReductionSteps steps = steps_of_library(reduction);
  const DType wire = steps.wire;
  const std::int64_t mine = spread.counts[static_cast<std::size_t>(rank_)];
  std::byte* given = buffer_of(in_, static_cast<std::size_t>(total) * size_of(wire));
  std::byte* got = buffer_of(out_, static_cast<std::size_t>(mine + 1) * size_of(wire));
  const Part in{spread.in, given, total};
  device_.convert(wire, reduction.dtype, {&in, 1}, steps.before, stream_);
  const MpiLayout layout(spread.counts, 1);
  co_await quiet();
  co_await completion(communicator_.mpi().ireduce_scatter(given, got, layout.counts.data(), mpi_type(wire),
                                                          mpi_op(reduction), communicator_.comm()));
  const Part out{got, spread.out, mine};
  device_.convert(reduction.dtype, wire, {&out, 1}, steps.after, stream_);
}

Task MpiGpuCollectives::alltoall(std::size_t element_size, const Exchange& exchange) {
  const MpiUnit unit = mpi_unit(element_size);
  const MpiLayout send(exchange.send_counts, unit.per_element);
  const MpiLayout receive(exchange.receive_counts, unit.per_element);
  co_await quiet();
  co_await completion(communicator_.mpi().ialltoallv(exchange.in, send.counts.data(), send.displacements.data(),
                                                     exchange.out, receive.counts.data(), receive.displacements.data(),
                                                     unit.type, communicator_.comm()));
}

}  // namespace sirtaki
