// CoordinatorCache in shared memory through which the ranks of one host hand each other data, and the counters that say
// how far everybody is.
//
// A collective is a series of turns, numbered for ever and alike on all ranks. In turn t a rank writes into its own
// slot t % kSlots, says so (written), reads the slots of others, and says that it no longer needs them (done). In some
// turns every rank also changes a part of everybody's slot between the two and says that (reduced).
//
// Why it is safe: a rank writes its slot in turn t only when all ranks are done with turn t - kSlots, so nobody reads
// it. Counters only grow and each has one writer. A writer stores with release after its data, a reader loads with
// acquire before reading, so what was written before the counter is seen after it.
#pragma once

#include <sys/types.h>

#include <algorithm>
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

  static std::size_t segment_size(int ranks, std::size_t slot_size);

  // Collective over the transport's ranks; blocks. The segment has segment_size() bytes for some size of slots. Ranks
  // wake each other by the transport if that can. Errors call them by `names`, if any.
  ShmChannel(std::unique_ptr<ShmSegment> segment, Transport& transport, std::vector<int> names = {});

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::size_t slot_size() const { return slot_size_; }
  std::byte* slot(int rank, std::uint64_t turn) const;
  // Brings the first bytes of this rank's slot into this core's cache, so that the next turn need not wait for others
  // to give them up; the program goes on meanwhile.
  void fetch_own_slot(std::uint64_t turn, std::size_t bytes) const;
  // Are there as many cores for these ranks as there are ranks? The same on all of them.
  bool cores_are_free() const { return cores_are_free_; }
  // Does whoever hands over wake whom it concerns?
  bool wakes() const { return transport_->wakes(); }

  // The number of the next turn; a collective takes as many as it needs.
  std::uint64_t take_turns(std::uint64_t count) { return std::exchange(next_, next_ + count); }

  // Null if there is nothing to wait for, or no longer after a moment: where cores are free, a rank that is running
  // hands over sooner than a look at everything else takes. Waiting for a rank whose process has died throws
  // Error(kAborted).
  PendingPtr may_write(std::uint64_t turn) const;
  PendingPtr all_written(std::uint64_t turn) const;
  PendingPtr written_by(int rank, std::uint64_t turn) const;
  PendingPtr all_reduced(std::uint64_t turn) const;

  void say_written(std::uint64_t turn) {
    publish_done();
    own().written.store(turn + 1, std::memory_order_release);
    wake_others();
  }
  // The same in a turn in which all ranks write and wait until all have: the last one alone wakes the others. Who waits
  // for what they are done with learns of it then, for that is published first.
  void say_written_among_all(std::uint64_t turn) {
    publish_done();
    say_among_all(&Counters::written, turn);
  }
  void say_reduced(std::uint64_t turn) { say_among_all(&Counters::reduced, turn); }
  void say_done(std::uint64_t turn) {
    done_ = turn + 1;
    publish_done();
    wake_others();
  }
  // Tells nobody before the next say_written(): saves a hand-over of the counters' line. The others must not wait for
  // it before that: they need it only kSlots turns later.
  void note_done(std::uint64_t turn) { done_ = turn + 1; }
  // For a collective of which it follows that all ranks are done with the turns before this one.
  void know_all_done_before(std::uint64_t turn) { all_done_ = std::max(all_done_, turn); }

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
  void say_among_all(Counter counter, std::uint64_t turn);
  void publish_done() { own().done.store(done_, std::memory_order_release); }
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
