// Channel slots in shared memory, through which the ranks of one host exchange data. Counters show how far each rank
// is.
//
// A collective is a series of turns. Turn numbers never restart and are equal on all ranks. In turn t a rank writes
// into its own slot t % kSlots and publishes that (counter `written`). Then it reads the slots of the other ranks and
// publishes that it no longer needs them (`done`). In some turns every rank, between the two, also writes results into
// its part of all slots and publishes that (`reduced`).
//
// Why it is safe: a rank writes its slot in turn t only when all ranks are done with turn t - kSlots, so no rank reads
// the slot. Counters only grow, and each has one writer. The writer stores the counter with release after its data. A
// reader loads the counter with acquire before it reads the data, so it sees all data written before.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/task.h"
#include "host/shm_segment.h"

namespace sirtaki {

class ShmChannel {
 public:
  static constexpr std::uint64_t kSlots = 4;
  // Of a slot, in order of preference. The smaller ones are for many ranks or a small /dev/shm.
  static constexpr std::array<std::size_t, 3> kSlotBytes = {512 << 10, 128 << 10, 64 << 10};
  // Results of this size stay in the L1 cache until they are copied to all slots.
  static constexpr std::size_t kBlockBytes = 16 << 10;

  static std::size_t segment_size(int ranks, std::size_t slot_size);

  // Collective over the transport's ranks; blocks. The segment has segment_size() bytes for some slot size. Ranks wake
  // each other through the transport, if it can do that. `names`: rank numbers for error messages; optional.
  ShmChannel(std::unique_ptr<ShmSegment> segment, Transport& transport, std::vector<int> names = {});

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t slot_size() const { return slot_size_; }
  std::byte* slot(int rank, std::uint64_t turn) const;
  // Prefetches the first bytes of this rank's slot from other cores' caches, so that the next turn need not wait for
  // them. Returns at once.
  void prefetch_own_slot(std::uint64_t turn, std::size_t bytes) const;
  // Is there one core for each of these ranks? All ranks get the same answer.
  bool cores_are_free() const { return cores_are_free_; }
  // Does a rank wake the waiting ranks when it publishes a counter?
  bool wakes() const { return transport_->wakes(); }

  // Reserves `count` turns and returns the first one's number. A collective takes as many turns as it needs.
  std::uint64_t take_turns(std::uint64_t count) { return std::exchange(next_, next_ + count); }

  // Null if there is nothing to wait for. Where cores are free, these calls first spin for some microseconds: the other
  // rank usually publishes sooner than the engine could look at its other work. Waiting for a rank whose process has
  // died throws Error(kAborted).
  PendingPtr may_write(std::uint64_t turn) const;
  PendingPtr all_written(std::uint64_t turn) const;
  PendingPtr written_by(int rank, std::uint64_t turn) const;
  PendingPtr all_reduced(std::uint64_t turn) const;

  void publish_written(std::uint64_t turn) {
    store_done();
    own().written.store(turn + 1, std::memory_order_release);
    wake_others();
  }
  // For a turn in which every rank writes and then waits until all have written: only the last rank wakes the others.
  // `done` is published first, so that a rank that waits for `done` sees it when it is woken.
  void publish_written_last_wakes(std::uint64_t turn) {
    store_done();
    publish_last_wakes(&Counters::written, turn);
  }
  void publish_reduced(std::uint64_t turn) { publish_last_wakes(&Counters::reduced, turn); }
  void publish_done(std::uint64_t turn) {
    done_ = turn + 1;
    store_done();
    wake_others();
  }
  // Publishes `done` only with the next publish_written(), so that the counters' cache line moves between cores once
  // less. No other rank may wait for it earlier. They need it only kSlots turns later.
  void defer_done(std::uint64_t turn) { done_ = turn + 1; }
  // The collective's own algorithm shows that all ranks are done with the turns before this one.
  void set_all_done_before(std::uint64_t turn) { all_done_ = std::max(all_done_, turn); }

 private:
  // On its own pair of cache lines, since processors fetch lines in pairs.
  struct alignas(128) Counters {
    std::atomic<std::uint64_t> written;
    std::atomic<std::uint64_t> reduced;
    std::atomic<std::uint64_t> done;
    std::atomic<pid_t> process;
  };
  using Counter = std::atomic<std::uint64_t> Counters::*;
  class Wait;

  PendingPtr wait_for(Counter counter, std::uint64_t value, int first, int last) const;
  bool find_cores();
  bool has_died(int rank) const;
  void wake_others();
  void publish_last_wakes(Counter counter, std::uint64_t turn);
  void store_done() { own().done.store(done_, std::memory_order_release); }
  Counters& own() const { return counters_[rank_]; }

  std::unique_ptr<ShmSegment> segment_;
  Transport* transport_;
  std::vector<int> names_;
  Counters* counters_;
  std::byte* slots_;
  int rank_;
  int size_;
  std::size_t slot_size_;
  std::uint64_t next_ = 0;
  std::uint64_t done_ = 0;      // turns that this rank is done with
  std::uint64_t all_done_ = 0;  // turns that all ranks are known to be done with
  bool cores_are_free_ = false;
};

}  // namespace sirtaki
