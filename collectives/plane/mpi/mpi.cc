#include "plane/mpi/mpi.h"

#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "math/kernels.h"
#include "memory/host_buffer.h"
#include "plane/mpi/mpi_allreduce.h"
#include "plane/mpi/mpi_broadcast.h"
#include "plane/mpi/mpi_types.h"
#include "plane/mpi/mpi_window.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

// Memory that MPI reads and writes while operations are under way.
struct Memory {
  HostBuffer staging;  // for MpiWindow
  HostBuffer in;
  HostBuffer out;
  MpiLayout send;
  MpiLayout receive;
};

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

class MpiPlane final : public DataPlane {
 public:
  explicit MpiPlane(MpiCommunicator communicator)
      : communicator_(std::move(communicator)), rank_(communicator_.rank()) {
    memory_.staging = HostBuffer(kStagingBytes);
  }

  ~MpiPlane() override {
    if (in_flight_ == 0) return;
    static_cast<void>(new Memory(std::move(memory_)));  // never freed: MPI may still use it
    communicator_.leak();
  }

  std::string_view name() const override { return "mpi"; }
  bool supports(const PlaneQuery& query) const override;
  Task allreduce(Reduction reduction, std::span<const Segment> segments) override;
  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override;
  Task allgather(std::size_t element_size, const Spread& spread) override;
  Task reducescatter(Reduction reduction, const Spread& spread) override;
  Task alltoall(std::size_t element_size, const Exchange& exchange) override;

 private:
  class Operation;

  template <typename Pieces>
  Task run(Pieces pieces);
  PendingPtr completion(MpiRequest request);

  MpiCommunicator communicator_;
  int rank_;
  Memory memory_;
  int in_flight_ = 0;  // pieces and operations that were started and that MPI may still work on
};

class MpiPlane::Operation final : public Pending {
 public:
  Operation(MpiPlane& plane, MpiRequest request) : plane_(plane), request_(request) {}

  bool ready() override {
    if (!done_ && plane_.communicator_.mpi().test(request_)) {
      done_ = true;
      --plane_.in_flight_;
    }
    return done_;
  }

 private:
  MpiPlane& plane_;
  MpiRequest request_;
  bool done_ = false;
};

PendingPtr MpiPlane::completion(MpiRequest request) { return std::make_unique<Operation>(*this, request); }

bool MpiPlane::supports(const PlaneQuery& query) const {
  if (query.device != kHostDevice) return false;
  const bool reduces = query.verb == Verb::kAllreduce || query.verb == Verb::kReducescatter;
  if (reduces && !library_has(query.op, query.dtype)) return false;
  switch (query.verb) {
    case Verb::kAllreduce:
    case Verb::kBroadcast:
      return true;  // in pieces
    case Verb::kAllgather:
    case Verb::kAlltoall:
    case Verb::kReducescatter:
      return query.bytes / static_cast<std::int64_t>(size_of(query.dtype)) <= std::numeric_limits<int>::max();
    default:
      return false;
  }
}

template <typename Pieces>
Task MpiPlane::run(Pieces pieces) {
  co_await PendingPtr(
      std::make_unique<MpiWindow<Pieces>>(communicator_.mpi(), std::move(pieces), memory_.staging.data(), in_flight_));
}

Task MpiPlane::allreduce(Reduction reduction, std::span<const Segment> segments) {
  return run(MpiAllreducePieces(communicator_, reduction, segments));
}

Task MpiPlane::broadcast(int root, std::size_t element_size, std::span<const Segment> segments) {
  return run(MpiBroadcastPieces(communicator_, root, element_size, segments));
}

Task MpiPlane::allgather(std::size_t element_size, const Spread& spread) {
  if (sum(spread.counts) == 0) co_return;
  const MpiUnit unit = mpi_unit(element_size);
  MpiLayout& layout = memory_.receive = MpiLayout(spread.counts, unit.per_element);
  const int count = layout.counts[static_cast<std::size_t>(rank_)];
  const MpiRequest request = communicator_.mpi().iallgatherv(
      spread.in, count, spread.out, layout.counts.data(), layout.displacements.data(), unit.type, communicator_.comm());
  ++in_flight_;
  co_await completion(request);
}

Task MpiPlane::reducescatter(Reduction reduction, const Spread& spread) {
  const std::int64_t total = sum(spread.counts);
  if (total == 0) co_return;
  const ReductionSteps steps = steps_of_library(reduction);
  const DType wire = steps.wire;
  const bool cast = wire != reduction.dtype;
  const std::int64_t mine = spread.counts[static_cast<std::size_t>(rank_)];
  const void* in = spread.in;
  void* out = spread.out;
  if (cast || steps.before != 1.0 || in == out) {
    memory_.in = HostBuffer(static_cast<std::size_t>(total) * size_of(wire));
    convert(wire, memory_.in.data(), reduction.dtype, spread.in, total, steps.before);
    in = memory_.in.data();
  }
  if (cast) {
    memory_.out = HostBuffer(static_cast<std::size_t>(mine) * size_of(wire));
    out = memory_.out.data();
  }
  memory_.receive = MpiLayout(spread.counts, 1);
  const MpiRequest request = communicator_.mpi().ireduce_scatter(in, out, memory_.receive.counts.data(), mpi_type(wire),
                                                                 mpi_op(reduction), communicator_.comm());
  ++in_flight_;
  co_await completion(request);
  if (cast || !steps.after.is_one()) convert(reduction.dtype, spread.out, wire, out, mine, steps.after);
  memory_.in = {};
  memory_.out = {};
}

Task MpiPlane::alltoall(std::size_t element_size, const Exchange& exchange) {
  const MpiUnit unit = mpi_unit(element_size);
  const MpiLayout& send = memory_.send = MpiLayout(exchange.send_counts, unit.per_element);
  const MpiLayout& receive = memory_.receive = MpiLayout(exchange.receive_counts, unit.per_element);
  const MpiRequest request = communicator_.mpi().ialltoallv(
      exchange.in, send.counts.data(), send.displacements.data(), exchange.out, receive.counts.data(),
      receive.displacements.data(), unit.type, communicator_.comm());
  ++in_flight_;
  co_await completion(request);
}

}  // namespace

std::unique_ptr<DataPlane> make_mpi_plane(const MpiTransport& transport) {
  return std::make_unique<MpiPlane>(transport.communicator().duplicate());
}

}  // namespace sirtaki
