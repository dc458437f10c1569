#include "plane/shm/two_level.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <utility>

#include "host/setup_exchange.h"
#include "math/kernels.h"
#include "plane/host_layout.h"
#include "plane/pieces.h"
#include "plane/reduction_steps.h"
#include "plane/shm/shm_channel.h"
#include "plane/shm/slice_exchange.h"
#include "plane/shm/slice_reducer.h"

namespace sirtaki {
namespace {

constexpr std::size_t kSmallestPiece = std::size_t{64} << 10;
constexpr std::size_t kPieces = 8;  // at least, of a large batch: keeps memory and network busy at the same time

class TwoLevelPlane final : public DataPlane {
 public:
  // `slot_bytes`: the largest piece, the same on all hosts.
  TwoLevelPlane(std::unique_ptr<Transport> host, ShmChannel channel, std::size_t slot_bytes, SliceExchange rails,
                int leaders)
      : host_(std::move(host)),
        channel_(std::move(channel)),
        slot_bytes_(slot_bytes),
        rails_(std::move(rails)),
        leaders_(leaders) {}

  std::string_view name() const override { return "two-level"; }

  bool supports(const PlaneQuery& query) const override {
    return query.verb == Verb::kAllreduce && query.device == kHostDevice && library_has(query.op, query.dtype);
  }

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override;

  Task broadcast(int, std::size_t, std::span<const Segment>) override { return refuse(); }
  Task allgather(std::size_t, const Spread&) override { return refuse(); }
  Task reducescatter(Reduction, const Spread&) override { return refuse(); }
  Task alltoall(std::size_t, const Exchange&) override { return refuse(); }

 private:
  static Task refuse() {
    throw std::logic_error("the two-level plane only allreduces");
    co_return;
  }
  std::size_t piece_bytes(std::size_t batch_bytes) const {
    return std::clamp(batch_bytes / kPieces, std::min(kSmallestPiece, slot_bytes_), slot_bytes_);
  }

  std::unique_ptr<Transport> host_;
  ShmChannel channel_;
  std::size_t slot_bytes_;
  SliceExchange rails_;
  int leaders_;
};

// A pipeline of four stages: copy a piece in; sum it over the host and start the rail; write back the result of the
// rail; copy it out. Two pieces are on the rails at a time. So a rank is done with a piece before it copies in the
// fourth piece after it, which needs the same slots.
Task TwoLevelPlane::allreduce(Reduction reduction, std::span<const Segment> segments) {
  static_assert(SliceExchange::kCount == 2 && ShmChannel::kSlots == 4);
  const std::size_t item = size_of(reduction.dtype);
  const auto limit = static_cast<std::int64_t>(piece_bytes(total_bytes(segments, item)) / item);
  const PieceWalk walk(segments, {.piece = limit, .direct = kPackAll});
  const std::vector<Piece> pieces = cut(walk);
  const std::size_t count = pieces.size();
  SliceReducer slices(channel_, reduction, walk, leaders_);
  const std::uint64_t first = channel_.take_turns(count);
  for (std::size_t step = 0; step < count + 3; ++step) {
    if (step < count) {
      co_await rails_.alongside(channel_.may_write(first + step));
      slices.copy_in(pieces[step], first + step);
      channel_.publish_written_last_wakes(first + step);
    }
    if (step >= 1 && step < count + 1) {
      const std::size_t piece = step - 1;
      co_await rails_.alongside(channel_.all_written(first + piece));
      if (const std::int64_t length = slices.slice_count(pieces[piece]); length > 0) {
        slices.reduce(pieces[piece], first + piece, rails_.memory(piece));
        rails_.start(piece, slices.wire(), reduction.op, length);
      }
    }
    if (step >= 2 && step < count + 2) {
      const std::size_t piece = step - 2;
      co_await rails_.arrival(piece);
      if (slices.slice_count(pieces[piece]) > 0) {
        slices.spread(pieces[piece], first + piece, rails_.memory(piece));
      }
      channel_.publish_reduced(first + piece);
    }
    if (step >= 3) {
      const std::size_t piece = step - 3;
      co_await rails_.alongside(channel_.all_reduced(first + piece));
      slices.copy_out(pieces[piece], first + piece);
      channel_.publish_done(first + piece);
    }
  }
}

// Making a rail is collective, so ranks that lead no slice call this too.
SliceExchange make_rails(const std::vector<int>& ranks, const MakeRail& make_rail, std::size_t slice_bytes) {
  std::vector<Rail> rails;
  for (std::size_t i = 0; i < SliceExchange::kCount; ++i) {
    Rail rail = make_rail(ranks);
    if (rail.transport != nullptr) rails.push_back(std::move(rail));
  }
  return rails.empty() ? SliceExchange() : SliceExchange(std::move(rails), slice_bytes);
}

}  // namespace

bool has_two_levels(const std::vector<int>& hosts) {
  std::map<int, int> ranks;
  for (const int host : hosts) ++ranks[host];
  return ranks.size() > 1 && ranks.size() < hosts.size();
}

std::unique_ptr<DataPlane> make_two_level_plane(Transport& transport, const std::vector<int>& hosts,
                                                const MakeRail& make_rail, std::string& why) {
  const HostLayout levels = host_layout_of(transport.rank(), hosts);
  auto host = transport.split(levels.host);
  std::vector<std::size_t> sizes;
  sizes.reserve(ShmChannel::kSlotBytes.size());
  for (const std::size_t slot : ShmChannel::kSlotBytes) sizes.push_back(ShmChannel::segment_size(host->size(), slot));
  std::string failure;
  auto segment = ShmSegment::make(*host, sizes, failure);
  why = first_failure(transport, failure.empty() ? "" : "on its host, local " + failure);
  if (!why.empty()) return nullptr;
  ShmChannel channel(std::move(segment), *host, levels.host);
  const std::size_t slot_bytes = least_of_all(transport, channel.slot_size());
  // Elements of the widest wire dtype. A slice begins at a cache line, so it can be one line longer than its share.
  const std::size_t slice_bytes = (slot_bytes / static_cast<std::size_t>(levels.leaders) + 64) * sizeof(double);
  SliceExchange rails = make_rails(levels.rail, make_rail, slice_bytes);
  return std::make_unique<TwoLevelPlane>(std::move(host), std::move(channel), slot_bytes, std::move(rails),
                                         levels.leaders);
}

}  // namespace sirtaki
