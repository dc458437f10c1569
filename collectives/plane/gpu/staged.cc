#include "plane/gpu/staged.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "math/kernels.h"
#include "plane/pieces.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kStagedPieceBytes = std::int64_t{4} << 20;

const std::byte* at_if(const void* base, std::int64_t index, std::size_t size) {
  return base == nullptr ? nullptr : at(base, index, size);
}

std::vector<std::int64_t> starts_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> starts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

// One round of a large allgather or reducescatter: the next elements of every rank's part.
struct Round {
  std::vector<std::int64_t> counts;  // by rank
  std::vector<StagingCopy> parts;    // one after the other in the buffer
  std::int64_t total = 0;            // elements of all parts
  std::vector<StagingCopy> own;      // this rank's part, behind them
  std::int64_t needed = 0;           // buffer size in elements
};

// `whole`: memory of all ranks' parts; `part`: of this rank's alone.
std::vector<Round> rounds_of(const Spread& spread, int rank, std::size_t size, const void* whole, const void* part) {
  const auto mine = static_cast<std::size_t>(rank);
  const auto ranks = static_cast<std::int64_t>(spread.counts.size());
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const std::int64_t most = std::max<std::int64_t>(kStagedPieceBytes / static_cast<std::int64_t>(size) / ranks, 1);
  std::vector<Round> rounds;
  for (std::int64_t done = 0; done < longest; done += most) {
    Round round;
    for (std::size_t r = 0; r < spread.counts.size(); ++r) {
      const std::int64_t count = std::clamp<std::int64_t>(spread.counts[r] - done, 0, most);
      if (count > 0) round.parts.push_back({at_if(whole, starts[r] + done, size), round.total, count});
      round.counts.push_back(count);
      round.total += count;
    }
    const std::int64_t count = round.counts[mine];
    if (count > 0) round.own.push_back({at_if(part, done, size), round.total, count});
    round.needed = round.total + count;
    rounds.push_back(std::move(round));
  }
  return rounds;
}

// Reduces tensors or parts of tensors, one after the other in the buffer. A rank that has joined has no memory for
// them.
StagingStep reduction_step(DataPlane& host, const Reduction& reduction, std::span<const Segment> parts) {
  StagingStep step;
  std::vector<std::pair<std::int64_t, std::int64_t>> absent;
  for (const Segment& part : parts) {
    if (part.in == nullptr) {
      absent.emplace_back(step.count, part.count);
    } else {
      step.in.push_back({static_cast<const std::byte*>(part.in), step.count, part.count});
      step.out.push_back({static_cast<const std::byte*>(part.out), step.count, part.count});
    }
    step.count += part.count;
  }
  step.fill = [reduction, absent](std::byte* buffer) {
    for (const auto& [position, count] : absent) {
      std::byte* place = buffer + static_cast<std::size_t>(position) * size_of(reduction.dtype);
      fill_identity(reduction.dtype, reduction.op, place, count);
    }
  };
  step.combine = [&host, reduction, count = step.count](std::byte* buffer) -> Task {
    const Segment segment{buffer, buffer, count};
    co_await host.allreduce(reduction, {&segment, 1});
  };
  return step;
}

}  // namespace

DataPlane& StagedCollectives::host_plane(PlaneQuery query) const {
  query.device = kHostDevice;
  for (DataPlane* plane : host_planes_) {
    if (plane->supports(query)) return *plane;
  }
  throw Error(ErrorKind::kPrecondition, "No data plane can run " + std::string(name_of(query.verb)) + " of " +
                                            std::string(name_of(query.dtype)) + " through the host");
}

Task StagedCollectives::allreduce(PlaneQuery query, Reduction reduction, std::span<const Segment> segments) {
  const std::size_t size = size_of(reduction.dtype);
  DataPlane& host = host_plane(query);
  std::vector<StagingStep> steps;
  if (reduction.op == ReduceOp::kAdasum) {  // works on each tensor as a whole
    for (const Segment& segment : segments) {
      if (segment.count > 0) steps.push_back(reduction_step(host, reduction, {&segment, 1}));
    }
    co_await buffers_.run(std::move(steps), size);
    co_return;
  }
  PieceWalk walk(segments, {.piece = kStagedPieceBytes / static_cast<std::int64_t>(size), .direct = kPackAll});
  for (Piece piece; walk.next(piece);) {
    std::vector<Segment> parts;
    walk.for_each_part(piece, [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t) {
      parts.push_back({at_if(segment.in, from, size), const_cast<std::byte*>(at_if(segment.out, from, size)), count});
    });
    steps.push_back(reduction_step(host, reduction, parts));
  }
  co_await buffers_.run(std::move(steps), size);
}

Task StagedCollectives::broadcast(PlaneQuery query, int root, std::size_t element_size,
                                  std::span<const Segment> segments) {
  DataPlane& host = host_plane(query);
  std::vector<StagingStep> steps;
  PieceWalk walk(segments, {.piece = kStagedPieceBytes / static_cast<std::int64_t>(element_size), .direct = kPackAll});
  for (Piece piece; walk.next(piece);) {
    StagingStep step;
    walk.for_each_part(piece,
                       [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
                         if (rank_ == root) {
                           step.in.push_back({at_if(segment.in, from, element_size), position, count});
                         } else {
                           step.out.push_back({at_if(segment.out, from, element_size), position, count});
                         }
                       });
    step.count = piece.count;
    step.combine = [&host, root, element_size, count = piece.count](std::byte* buffer) -> Task {
      const Segment segment{buffer, buffer, count};
      co_await host.broadcast(root, element_size, {&segment, 1});
    };
    steps.push_back(std::move(step));
  }
  for (const Segment& segment : segments) {
    if (rank_ == root && segment.in != segment.out && segment.count > 0) {
      device_.copy(segment.out, segment.in, static_cast<std::size_t>(segment.count) * element_size, stream_);
    }
  }
  co_await buffers_.run(std::move(steps), element_size);
}

Task StagedCollectives::allgather(PlaneQuery query, std::size_t element_size, const Spread& spread) {
  DataPlane& host = host_plane(query);
  std::vector<StagingStep> steps;
  for (Round& round : rounds_of(spread, rank_, element_size, spread.out, spread.in)) {
    StagingStep step;
    step.in = std::move(round.own);
    step.out = std::move(round.parts);
    step.count = round.needed;
    step.combine = [&host, counts = std::move(round.counts), element_size,
                    total = round.total](std::byte* buffer) -> Task {
      const Spread staged{buffer + static_cast<std::size_t>(total) * element_size, buffer, counts};
      co_await host.allgather(element_size, staged);
    };
    steps.push_back(std::move(step));
  }
  co_await buffers_.run(std::move(steps), element_size);
}

Task StagedCollectives::reducescatter(PlaneQuery query, Reduction reduction, const Spread& spread) {
  DataPlane& host = host_plane(query);
  const std::size_t size = size_of(reduction.dtype);
  std::vector<StagingStep> steps;
  for (Round& round : rounds_of(spread, rank_, size, spread.in, spread.out)) {
    StagingStep step;
    step.in = std::move(round.parts);
    step.out = std::move(round.own);
    step.count = round.needed;
    step.combine = [&host, counts = std::move(round.counts), reduction, size,
                    total = round.total](std::byte* buffer) -> Task {
      const Spread staged{buffer, buffer + static_cast<std::size_t>(total) * size, counts};
      co_await host.reducescatter(reduction, staged);
    };
    steps.push_back(std::move(step));
  }
  co_await buffers_.run(std::move(steps), size);
}

// In one round: a rank knows only its own sizes, so the ranks could not agree on a number of rounds.
Task StagedCollectives::alltoall(PlaneQuery query, std::size_t element_size, const Exchange& exchange) {
  DataPlane& host = host_plane(query);
  const std::int64_t sent = starts_of(exchange.send_counts).back();
  const std::int64_t received = starts_of(exchange.receive_counts).back();
  StagingStep step;
  if (sent > 0) step.in.push_back({at_if(exchange.in, 0, element_size), 0, sent});
  if (received > 0) step.out.push_back({at_if(exchange.out, 0, element_size), sent, received});
  step.count = sent + received;
  step.combine = [&host, &exchange, element_size, sent](std::byte* buffer) -> Task {
    Exchange staged = exchange;
    staged.in = buffer;
    staged.out = buffer + static_cast<std::size_t>(sent) * element_size;
    co_await host.alltoall(element_size, staged);
  };
  std::vector<StagingStep> steps;
  steps.push_back(std::move(step));
  co_await buffers_.run(std::move(steps), element_size);
}

}  // namespace sirtaki
