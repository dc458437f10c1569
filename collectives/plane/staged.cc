#include "plane/staged.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "error.h"
#include "kernels.h"
#include "plane/pieces.h"

namespace sirtaki {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

class Reached final : public Pending {
 public:
  explicit Reached(EventPtr event) : event_(std::move(event)) {}
  bool ready() override { return event_->reached(); }

 private:
  EventPtr event_;
};

const std::byte* at(const void* base, std::int64_t index, std::size_t size) {
  return base == nullptr ? nullptr : static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size);
}

std::vector<std::int64_t> starts_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> starts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

// Whole elements of one size, whatever they mean.
DType bits_of(std::size_t element_size) {
  constexpr std::array<DType, 4> kBits = {DType::kUint8, DType::kUint16, DType::kUint32, DType::kUint64};
  for (const DType dtype : kBits) {
    if (size_of(dtype) == element_size) return dtype;
  }
  return DType::kUint8;
}

}  // namespace

PendingPtr reached(EventPtr event) {
  if (event == nullptr || event->reached()) return nullptr;
  return std::make_unique<Reached>(std::move(event));
}

// Between GPU memory and the room: `count` elements at element `position` of the room.
struct StagedCollectives::Copy {
  const std::byte* memory;
  std::int64_t position;
  std::int64_t count;
};

// What one room is used for at a time. `combine` works in the room, after fill() has put there what no copy brings.
struct StagedCollectives::Step {
  std::vector<Copy> in;
  std::vector<Copy> out;
  std::int64_t count = 0;  // elements of room that it needs
  std::function<void(std::byte* room)> fill;
  std::function<Task(std::byte* room)> combine;
};

struct StagedCollectives::Room {
  DeviceMemory host;
  DeviceMemory packed;  // on the GPU, where many small tensors become one copy
  EventPtr fetched;
  EventPtr free;  // what was in it has been copied back
};

StagedCollectives::StagedCollectives(Device& device, Stream stream, int rank, std::vector<DataPlane*> host_planes)
    : device_(device),
      stream_(stream),
      to_host_(device.make_stream()),
      to_device_(device.make_stream()),
      rank_(rank),
      host_planes_(std::move(host_planes)),
      rooms_(std::make_unique<std::array<Room, kRooms>>()) {}

StagedCollectives::~StagedCollectives() {
  if (busy_) {
    for (Room& room : *rooms_) {
      room.host.leak();
      room.packed.leak();
    }
    return;
  }
  device_.destroy(to_host_);
  device_.destroy(to_device_);
}

DataPlane& StagedCollectives::host_plane(PlaneQuery query) const {
  query.device = kHostDevice;
  for (DataPlane* plane : host_planes_) {
    if (plane->supports(query)) return *plane;
  }
  throw Error(ErrorKind::kPrecondition, "No data plane can run " + std::string(name_of(query.verb)) + " of " +
                                            std::string(name_of(query.dtype)) + " by way of the host");
}

void StagedCollectives::make_room(Room& room, std::size_t bytes) {
  if (room.host.size() >= bytes) return;
  if (room.free != nullptr) room.free->block();
  room.host = {};
  room.host = device_.allocate_pinned(bytes);
  if (room.host.data() == nullptr) {
    throw Error(ErrorKind::kAborted, "no pinned host memory of " + std::to_string(bytes) +
                                         " bytes for GPU tensors that travel by way of the host: raise the limit of "
                                         "locked memory (ulimit -l), or exchange smaller tensors");
  }
}

// Many small tensors become one copy, where there are kernels to gather them.
bool StagedCollectives::packs(std::span<const Copy> copies, Room& room) {
  if (copies.size() < 2 || !device_.lacks_kernels().empty()) return false;
  if (room.packed.size() < room.host.size()) {
    if (room.free != nullptr) room.free->block();
    room.packed = {};
    room.packed = device_.allocate(room.host.size());
  }
  return room.packed.data() != nullptr;
}

std::byte* StagedCollectives::place_of(const Copy& copy, const DeviceMemory& packed, std::size_t element_size) {
  return packed.data() + static_cast<std::size_t>(copy.position) * element_size;
}

// All that lies between the first and the last of the copies, in packed memory.
StagedCollectives::Copy StagedCollectives::span_of(std::span<const Copy> copies, const Room& room,
                                                   std::size_t element_size) {
  const Copy& first = copies.front();
  const Copy& last = copies.back();
  return {place_of(first, room.packed, element_size), first.position, last.position + last.count - first.position};
}

void StagedCollectives::move(std::span<const Copy> copies, Room& room, std::size_t element_size, bool to_host,
                             Stream stream) {
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * element_size; };
  for (const Copy& copy : copies) {
    std::byte* staged = room.host.data() + bytes(copy.position);
    auto* memory = const_cast<std::byte*>(copy.memory);
    device_.copy(to_host ? staged : memory, to_host ? memory : staged, bytes(copy.count), stream);
  }
}

// Copies to the host; several tensors are packed first, for a copy costs as much time as many kilobytes.
void StagedCollectives::fetch(const Step& step, Room& room, std::size_t element_size) {
  make_room(room, static_cast<std::size_t>(step.count) * element_size);
  if (room.free != nullptr) room.free->hold_back(to_host_);
  std::vector<Copy> copies = step.in;
  if (packs(copies, room)) {
    const Copy whole = span_of(copies, room, element_size);
    std::vector<Part> parts;
    for (const Copy& copy : copies) {
      parts.push_back({copy.memory, place_of(copy, room.packed, element_size), copy.count});
    }
    device_.convert(bits_of(element_size), bits_of(element_size), parts, 1.0, to_host_);
    copies = {whole};
  }
  move(copies, room, element_size, true, to_host_);
  room.fetched = device_.record(to_host_);
}

void StagedCollectives::put_back(const Step& step, Room& room, std::size_t element_size) {
  if (packs(step.out, room)) {
    const Copy whole = span_of(step.out, room, element_size);
    move({&whole, 1}, room, element_size, false, to_device_);
    std::vector<Part> parts;
    for (const Copy& copy : step.out) {
      parts.push_back({place_of(copy, room.packed, element_size), const_cast<std::byte*>(copy.memory), copy.count});
    }
    device_.convert(bits_of(element_size), bits_of(element_size), parts, 1.0, to_device_);
  } else {
    move(step.out, room, element_size, false, to_device_);
  }
  room.free = device_.record(to_device_);
}

Task StagedCollectives::run(std::vector<Step> steps, std::size_t element_size) {
  busy_ = true;
  const EventPtr before = device_.record(stream_);
  before->hold_back(to_host_);
  before->hold_back(to_device_);
  std::array<Room, kRooms>& rooms = *rooms_;
  for (std::size_t i = 0; i < std::min(kRooms, steps.size()); ++i) fetch(steps[i], rooms[i], element_size);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Room& room = rooms[i % kRooms];
    co_await reached(room.fetched);
    if (steps[i].fill) steps[i].fill(room.host.data());
    co_await steps[i].combine(room.host.data());
    put_back(steps[i], room, element_size);
    if (i + kRooms < steps.size()) fetch(steps[i + kRooms], room, element_size);
  }
  device_.record(to_device_)->hold_back(stream_);
  busy_ = false;
}

Task StagedCollectives::allreduce(PlaneQuery query, Reduction reduction, std::span<const Segment> segments) {
  const std::size_t size = size_of(reduction.dtype);
  DataPlane& host = host_plane(query);
  // Adasum looks at each tensor as a whole.
  const bool whole = reduction.op == ReduceOp::kAdasum;
  std::vector<Step> steps;
  const auto add = [&](Step step, std::vector<std::int64_t> counts, std::vector<bool> absent) {
    step.fill = [=](std::byte* room) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        if (absent[i]) fill_identity(reduction.dtype, reduction.op, room, counts[i]);
        room += static_cast<std::size_t>(counts[i]) * size;
      }
    };
    step.combine = [&host, reduction, count = step.count](std::byte* room) -> Task {
      const Segment segment{room, room, count};
      co_await host.allreduce(reduction, {&segment, 1});
    };
    steps.push_back(std::move(step));
  };
  PieceWalk walk(segments, {.piece = kPieceBytes / static_cast<std::int64_t>(size), .direct = kPackAll});
  if (whole) {
    for (const Segment& segment : segments) {
      if (segment.count == 0) continue;
      add({{{at(segment.in, 0, size), 0, segment.count}},
           {{at(segment.out, 0, size), 0, segment.count}},
           segment.count,
           {},
           {}},
          {}, {});
    }
  }
  for (Piece piece; !whole && walk.next(piece);) {
    Step step;
    std::vector<std::int64_t> counts;
    std::vector<bool> absent;
    walk.for_each_part(piece,
                       [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
                         counts.push_back(count);
                         absent.push_back(segment.in == nullptr);
                         if (segment.in != nullptr) step.in.push_back({at(segment.in, from, size), position, count});
                         if (segment.out != nullptr) step.out.push_back({at(segment.out, from, size), position, count});
                       });
    step.count = piece.count;
    add(std::move(step), std::move(counts), std::move(absent));
  }
  co_await run(std::move(steps), size);
}

Task StagedCollectives::broadcast(PlaneQuery query, int root, std::size_t element_size,
                                  std::span<const Segment> segments) {
  DataPlane& host = host_plane(query);
  std::vector<Step> steps;
  PieceWalk walk(segments, {.piece = kPieceBytes / static_cast<std::int64_t>(element_size), .direct = kPackAll});
  for (Piece piece; walk.next(piece);) {
    Step step;
    walk.for_each_part(piece,
                       [&](const Segment& segment, std::int64_t from, std::int64_t count, std::int64_t position) {
                         if (rank_ == root) {
                           step.in.push_back({at(segment.in, from, element_size), position, count});
                         } else {
                           step.out.push_back({at(segment.out, from, element_size), position, count});
                         }
                       });
    step.count = piece.count;
    step.combine = [&host, root, element_size, count = piece.count](std::byte* room) -> Task {
      const Segment segment{room, room, count};
      co_await host.broadcast(root, element_size, {&segment, 1});
    };
    steps.push_back(std::move(step));
  }
  for (const Segment& segment : segments) {
    if (rank_ == root && segment.in != segment.out && segment.count > 0) {
      device_.copy(segment.out, segment.in, static_cast<std::size_t>(segment.count) * element_size, stream_);
    }
  }
  co_await run(std::move(steps), element_size);
}

// Round by round, the next elements of every rank's part.
Task StagedCollectives::allgather(PlaneQuery query, std::size_t element_size, const Spread& spread) {
  DataPlane& host = host_plane(query);
  const auto ranks = static_cast<std::int64_t>(spread.counts.size());
  const auto mine = static_cast<std::size_t>(rank_);
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const std::int64_t most = std::max<std::int64_t>(kPieceBytes / static_cast<std::int64_t>(element_size) / ranks, 1);
  std::vector<Step> steps;
  for (std::int64_t done = 0; done < longest; done += most) {
    std::vector<std::int64_t> counts;
    for (const std::int64_t count : spread.counts) counts.push_back(std::clamp<std::int64_t>(count - done, 0, most));
    const std::vector<std::int64_t> packed = starts_of(counts);
    Step step;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] > 0) step.out.push_back({at(spread.out, starts[r] + done, element_size), packed[r], counts[r]});
    }
    if (counts[mine] > 0) step.in.push_back({at(spread.in, done, element_size), packed.back(), counts[mine]});
    step.count = packed.back() + counts[mine];
    step.combine = [&host, counts, element_size, total = packed.back()](std::byte* room) -> Task {
      const Spread staged{room + static_cast<std::size_t>(total) * element_size, room, counts};
      co_await host.allgather(element_size, staged);
    };
    steps.push_back(std::move(step));
  }
  co_await run(std::move(steps), element_size);
}

Task StagedCollectives::reducescatter(PlaneQuery query, Reduction reduction, const Spread& spread) {
  DataPlane& host = host_plane(query);
  const std::size_t size = size_of(reduction.dtype);
  const auto ranks = static_cast<std::int64_t>(spread.counts.size());
  const auto mine = static_cast<std::size_t>(rank_);
  const std::vector<std::int64_t> starts = starts_of(spread.counts);
  const std::int64_t longest = *std::max_element(spread.counts.begin(), spread.counts.end());
  const std::int64_t most = std::max<std::int64_t>(kPieceBytes / static_cast<std::int64_t>(size) / ranks, 1);
  std::vector<Step> steps;
  for (std::int64_t done = 0; done < longest; done += most) {
    std::vector<std::int64_t> counts;
    for (const std::int64_t count : spread.counts) counts.push_back(std::clamp<std::int64_t>(count - done, 0, most));
    const std::vector<std::int64_t> packed = starts_of(counts);
    Step step;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] > 0) step.in.push_back({at(spread.in, starts[r] + done, size), packed[r], counts[r]});
    }
    if (counts[mine] > 0) step.out.push_back({at(spread.out, done, size), packed.back(), counts[mine]});
    step.count = packed.back() + counts[mine];
    step.combine = [&host, counts, reduction, size, total = packed.back()](std::byte* room) -> Task {
      const Spread staged{room, room + static_cast<std::size_t>(total) * size, counts};
      co_await host.reducescatter(reduction, staged);
    };
    steps.push_back(std::move(step));
  }
  co_await run(std::move(steps), size);
}

// In one go: a rank knows only what it sends and receives itself, so that ranks could not agree on a number of rounds.
Task StagedCollectives::alltoall(PlaneQuery query, std::size_t element_size, const Exchange& exchange) {
  DataPlane& host = host_plane(query);
  const std::int64_t sent = starts_of(exchange.send_counts).back();
  const std::int64_t received = starts_of(exchange.receive_counts).back();
  Step step;
  if (sent > 0) step.in.push_back({at(exchange.in, 0, element_size), 0, sent});
  if (received > 0) step.out.push_back({at(exchange.out, 0, element_size), sent, received});
  step.count = sent + received;
  step.combine = [&host, &exchange, element_size, sent](std::byte* room) -> Task {
    Exchange staged = exchange;
    staged.in = room;
    staged.out = room + static_cast<std::size_t>(sent) * element_size;
    co_await host.alltoall(element_size, staged);
  };
  std::vector<Step> steps;
  steps.push_back(std::move(step));
  co_await run(std::move(steps), element_size);
}

}  // namespace sirtaki
