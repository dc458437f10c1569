#include "plane/shm/shm_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "math/reduce_inputs.h"
#include "math/streaming_copy.h"

namespace sirtaki {
namespace {

using Counts = std::vector<std::int64_t>;

Counts starts_of(const Counts& counts) {
  Counts starts(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

std::int64_t most(const Counts& counts) { return *std::ranges::max_element(counts); }

// A tensor in parts, one for each rank, of which each turn moves `step` elements.
class Parts {
 public:
  Parts(const Counts& counts, std::size_t item, std::int64_t step)
      : counts_(&counts), starts_(starts_of(counts)), item_(static_cast<std::int64_t>(item)), step_(step) {}

  std::int64_t length(int rank, std::uint64_t number) const {
    const std::int64_t left = (*counts_)[static_cast<std::size_t>(rank)] - static_cast<std::int64_t>(number) * step_;
    return std::clamp<std::int64_t>(left, 0, step_);
  }
  std::size_t bytes(int rank, std::uint64_t number) const {
    return static_cast<std::size_t>(length(rank, number) * item_);
  }
  std::int64_t total_bytes() const { return starts_.back() * item_; }
  // Of the elements in the tensor, in bytes.
  std::int64_t offset(int rank, std::uint64_t number) const {
    return (starts_[static_cast<std::size_t>(rank)] + static_cast<std::int64_t>(number) * step_) * item_;
  }

 private:
  const Counts* counts_;
  Counts starts_;
  std::int64_t item_;
  std::int64_t step_;
};

void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Copies pieces of a result.
class Writer {
 public:
  explicit Writer(std::int64_t result_bytes) : streams_(static_cast<std::size_t>(result_bytes) >= kStreamedBytes) {}
  void operator()(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes == 0 || to == from) return;
    if (streams_) {
      streaming_copy(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

 private:
  bool streams_;
};

const std::byte* bytes_of(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* bytes_of(void* memory) { return static_cast<std::byte*>(memory); }

// The places in a slot for the other ranks' parts of a turn.
class Places {
 public:
  Places(const ShmChannel& channel, std::size_t piece_bytes)
      : channel_(channel),
        bytes_(piece_bytes / static_cast<std::size_t>(std::max(channel.size() - 1, 1)) / kCacheLine * kCacheLine) {}

  std::byte* of(int owner, int reader, std::uint64_t turn) const {
    const int index = reader < owner ? reader : reader - 1;
    return channel_.slot(owner, turn) + static_cast<std::size_t>(index) * bytes_;
  }
  std::int64_t step(std::size_t item) const { return static_cast<std::int64_t>(bytes_ / item); }

 private:
  const ShmChannel& channel_;
  std::size_t bytes_;
};

// The three collectives. Each has these steps in a turn: write() for the other ranks, keep() this rank's own part,
// read() what another rank has written, finish() when all was read.

struct Gather {
  ShmChannel& channel;
  std::int64_t longest;
  std::int64_t step;
  std::int64_t item;
  Parts parts;
  const std::byte* in;  // this rank's part alone
  std::byte* out;
  Writer write_out;

  Gather(ShmChannel& made, std::size_t element_size, const Spread& spread, std::size_t piece_bytes)
      : channel(made),
        longest(most(spread.counts)),
        step(static_cast<std::int64_t>(piece_bytes / element_size)),
        item(static_cast<std::int64_t>(element_size)),
        parts(spread.counts, element_size, step),
        in(bytes_of(spread.in)),
        out(bytes_of(spread.out)),
        write_out(parts.total_bytes()) {}

  const std::byte* own(std::uint64_t number) const { return in + static_cast<std::int64_t>(number) * step * item; }
  void write(std::uint64_t number, std::uint64_t turn) const {
    move_bytes(channel.slot(channel.rank(), turn), own(number), parts.bytes(channel.rank(), number));
  }
  void keep(std::uint64_t number) const {
    write_out(out + parts.offset(channel.rank(), number), own(number), parts.bytes(channel.rank(), number));
  }
  void read(int rank, std::uint64_t number, std::uint64_t turn) const {
    write_out(out + parts.offset(rank, number), channel.slot(rank, turn), parts.bytes(rank, number));
  }
  void finish(std::uint64_t, std::uint64_t) const {}
};

struct ReduceScatter {
  ShmChannel& channel;
  std::int64_t longest;
  Places places;
  std::int64_t step;
  Reduction reduction;
  Parts parts;
  const std::byte* in;
  std::byte* out;  // this rank's part alone
  std::vector<const std::byte*> inputs;

  ReduceScatter(ShmChannel& made, const Reduction& wanted, const Spread& spread, std::size_t piece_bytes)
      : channel(made),
        longest(most(spread.counts)),
        places(made, piece_bytes),
        step(places.step(size_of(wanted.dtype))),
        reduction(wanted),
        parts(spread.counts, size_of(wanted.dtype), step),
        in(bytes_of(spread.in)),
        out(bytes_of(spread.out)),
        inputs(static_cast<std::size_t>(made.size())) {}

  void write(std::uint64_t number, std::uint64_t turn) const {
    for (int r = 0; r < channel.size(); ++r) {
      if (r == channel.rank()) continue;
      move_bytes(places.of(channel.rank(), r, turn), in + parts.offset(r, number), parts.bytes(r, number));
    }
  }
  void keep(std::uint64_t) const {}
  void read(int, std::uint64_t, std::uint64_t) const {}
  // Elements in the order of the ranks, so that the bits are the same as those of an allreduce.
  void finish(std::uint64_t number, std::uint64_t turn) {
    const int own = channel.rank();
    for (int r = 0; r < channel.size(); ++r) {
      inputs[static_cast<std::size_t>(r)] = r == own ? in + parts.offset(own, number) : places.of(r, own, turn);
    }
    const auto done = static_cast<std::int64_t>(number) * step * static_cast<std::int64_t>(size_of(reduction.dtype));
    reduce_inputs(reduction, inputs, out + done, parts.length(own, number));
  }
};

struct AllToAll {
  ShmChannel& channel;
  std::int64_t longest;
  Places places;
  std::int64_t step;
  Parts sent;
  Parts received;
  const std::byte* in;
  std::byte* out;
  Writer write_out;

  AllToAll(ShmChannel& made, std::size_t item, const Exchange& exchange, std::size_t piece_bytes)
      : channel(made),
        longest(exchange.longest),
        places(made, piece_bytes),
        step(places.step(item)),
        sent(exchange.send_counts, item, step),
        received(exchange.receive_counts, item, step),
        in(bytes_of(exchange.in)),
        out(bytes_of(exchange.out)),
        write_out(received.total_bytes()) {}

  void write(std::uint64_t number, std::uint64_t turn) const {
    for (int r = 0; r < channel.size(); ++r) {
      if (r == channel.rank()) continue;
      move_bytes(places.of(channel.rank(), r, turn), in + sent.offset(r, number), sent.bytes(r, number));
    }
  }
  void keep(std::uint64_t number) const {
    const int own = channel.rank();
    write_out(out + received.offset(own, number), in + sent.offset(own, number), sent.bytes(own, number));
  }
  void read(int rank, std::uint64_t number, std::uint64_t turn) const {
    write_out(out + received.offset(rank, number), places.of(rank, channel.rank(), turn), received.bytes(rank, number));
  }
  void finish(std::uint64_t, std::uint64_t) const {}
};

template <typename Move>
void begin_turn(Move& move, std::uint64_t number, std::uint64_t turn) {
  move.write(number, turn);
  move.channel.publish_written_last_wakes(turn);
  move.keep(number);
}

// A rank that has written in this turn has read in all turns but the last before it. It publishes `done` when it writes
// next, which is early enough with four slots.
template <typename Move>
void end_turn(Move& move, std::uint64_t number, std::uint64_t turn) {
  move.finish(number, turn);
  move.channel.set_all_done_before(turn - 1);
  move.channel.defer_done(turn);
}

template <typename Move>
void end_only_turn(Move& move, std::uint64_t turn) {
  for (int k = 1; k < move.channel.size(); ++k) move.read((move.channel.rank() + k) % move.channel.size(), 0, turn);
  end_turn(move, 0, turn);
}

template <typename Move>
Task read_later(Move move, std::uint64_t turn, PendingPtr all_written) {
  co_await std::move(all_written);
  end_only_turn(move, turn);
}

template <typename Move>
Task in_turns(Move move, std::uint64_t first, std::uint64_t count) {
  ShmChannel& channel = move.channel;
  for (std::uint64_t number = 0; number <= count; ++number) {
    if (number < count) {
      co_await channel.may_write(first + number);
      begin_turn(move, number, first + number);
    }
    if (number == 0) continue;
    const std::uint64_t turn = first + number - 1;
    for (int k = 1; k < channel.size(); ++k) {
      const int other = (channel.rank() + k) % channel.size();
      co_await channel.written_by(other, turn);
      move.read(other, number - 1, turn);
    }
    end_turn(move, number - 1, turn);
  }
}

template <typename Move>
Task run(Move move) {
  const auto count = static_cast<std::uint64_t>((move.longest + move.step - 1) / move.step);
  const std::uint64_t first = move.channel.take_turns(count);
  if (count == 0) return {};
  if (count > 1 || move.channel.may_write(first) != nullptr) return in_turns(std::move(move), first, count);
  begin_turn(move, 0, first);
  if (PendingPtr wait = move.channel.all_written(first)) return read_later(std::move(move), first, std::move(wait));
  end_only_turn(move, first);
  return {};
}

}  // namespace

Task shm_allgather(ShmChannel& channel, std::size_t element_size, const Spread& spread, std::size_t piece_bytes) {
  return run(Gather(channel, element_size, spread, piece_bytes));
}

Task shm_reducescatter(ShmChannel& channel, const Reduction& reduction, const Spread& spread, std::size_t piece_bytes) {
  return run(ReduceScatter(channel, reduction, spread, piece_bytes));
}

Task shm_alltoall(ShmChannel& channel, std::size_t element_size, const Exchange& exchange, std::size_t piece_bytes) {
  return run(AllToAll(channel, element_size, exchange, piece_bytes));
}

}  // namespace sirtaki
