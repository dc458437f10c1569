#include "plane/shm/shm_channel.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <new>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "host/wait_for.h"

namespace sirtaki {
namespace {

// Longer than the reduction of a piece takes. Shorter than a time slice, in case the ranks run on the same core.
constexpr std::chrono::microseconds kSpin{20};
constexpr int kLooks = 32;                        // checks of the counter between two readings of the clock
constexpr std::chrono::milliseconds kCheck{100};  // how often to check whether the awaited rank has died

// Compilers do not emit this instruction by themselves. Older processors ignore it.
void prefetch_to_write(const std::byte* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*address));
#else
  __builtin_prefetch(address, 1);
#endif
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Waits until the counters of the ranks `first` to `last` have all reached `value`. Reads them one rank after another.
class ShmChannel::Wait final : public Pending {
 public:
  Wait(const ShmChannel& channel, Counter counter, std::uint64_t value, int first, int last)
      : channel_(channel), counter_(counter), value_(value), next_(first), last_(last) {}

  bool ready() override {
    if (arrived()) return true;
    const auto now = Clock::now();
    if (now < next_check_) return false;
    const bool first = next_check_ == Clock::time_point();
    next_check_ = now + kCheck;
    return !first && check_life();
  }

  bool ready_in_a_moment() {
    for (int look = 0; look < kLooks; ++look) {
      if (arrived()) return true;
    }
    if (channel_.transport_->shares_core(next_)) return false;
    const auto limit = Clock::now() + kSpin;
    do {
      for (int look = 0; look < kLooks; ++look) {
        if (arrived()) return true;
        relax();
      }
    } while (Clock::now() < limit);
    return false;
  }

  bool arrived() {
    while (next_ <= last_ && (channel_.counters_[next_].*counter_).load(std::memory_order_acquire) >= value_) ++next_;
    return next_ > last_;
  }

 private:
  // Re-read the counter after the process was found dead: it may have published its last value and then exited
  // normally.
  bool check_life() {
    const int rank = next_;
    if (!channel_.has_died(rank) || arrived()) return next_ > last_;
    if (next_ != rank) return false;
    const int name = channel_.names_.empty() ? rank : channel_.names_[static_cast<std::size_t>(rank)];
    throw Error(ErrorKind::kAborted, "rank " + std::to_string(name) + " (process " +
                                         std::to_string(channel_.counters_[rank].process.load()) +
                                         ") has died in the middle of an operation in shared memory");
  }

  const ShmChannel& channel_;
  Counter counter_;
  std::uint64_t value_;
  int next_;
  int last_;
  Clock::time_point next_check_;
};

std::size_t ShmChannel::segment_size(int ranks, std::size_t slot_size) {
  return static_cast<std::size_t>(ranks) * (sizeof(Counters) + kSlots * slot_size);
}

// Fresh shared memory is zero, and counters begin at zero. Constructing them here would race with faster ranks.
ShmChannel::ShmChannel(std::unique_ptr<ShmSegment> segment, Transport& transport, std::vector<int> names)
    : segment_(std::move(segment)),
      transport_(&transport),
      names_(std::move(names)),
      counters_(std::launder(reinterpret_cast<Counters*>(segment_->bytes().data()))),
      slots_(segment_->bytes().data() + static_cast<std::size_t>(transport.size()) * sizeof(Counters)),
      rank_(transport.rank()),
      size_(transport.size()),
      slot_size_((segment_->bytes().size() / static_cast<std::size_t>(size_) - sizeof(Counters)) / kSlots) {
  cores_are_free_ = find_cores();  // find_cores() itself waits, and does not spin then
}

// Each rank may be bound to its own cores, so count the cores that all ranks have together.
bool ShmChannel::find_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);  // stays empty if the host has more cores than a cpu_set_t can hold
  static_cast<void>(sched_getaffinity(0, sizeof(all), &all));
  own().process.store(getpid());
  const std::uint64_t turn = take_turns(1);
  std::memcpy(slot(rank_, turn), &all, sizeof(all));
  publish_written(turn);
  sirtaki::wait_for(all_written(turn), *transport_, "the others");
  for (int r = 0; r < size_; ++r) {
    cpu_set_t theirs;
    std::memcpy(&theirs, slot(r, turn), sizeof(theirs));
    CPU_OR(&all, &all, &theirs);
  }
  publish_done(turn);
  return CPU_COUNT(&all) >= size_;
}

// Ranks that are threads of one process die together.
bool ShmChannel::has_died(int rank) const {
  return counters_[rank].process.load() != getpid() && segment_->is_released_by(rank);
}

void ShmChannel::wake_others() {
  if (!transport_->wakes()) return;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) transport_->wake(r);
  }
}

// The last rank to pass the fence sees the stores of all ranks, so at least this rank wakes the others. Where ranks
// share cores, each needless wake-up costs two context switches.
void ShmChannel::publish_last_wakes(Counter counter, std::uint64_t turn) {
  (own().*counter).store(turn + 1, std::memory_order_release);
  if (!transport_->wakes()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    if ((counters_[r].*counter).load(std::memory_order_acquire) <= turn) return;
  }
  wake_others();
}

std::byte* ShmChannel::slot(int rank, std::uint64_t turn) const {
  return slots_ + (static_cast<std::size_t>(rank) * kSlots + turn % kSlots) * slot_size_;
}

void ShmChannel::prefetch_own_slot(std::uint64_t turn, std::size_t bytes) const {
  const std::byte* const begin = slot(rank_, turn);
  for (std::size_t offset = 0; offset < bytes; offset += kCacheLine) prefetch_to_write(begin + offset);
}

PendingPtr ShmChannel::may_write(std::uint64_t turn) const {
  return turn < kSlots + all_done_ ? nullptr : wait_for(&Counters::done, turn - kSlots + 1, 0, size_ - 1);
}

PendingPtr ShmChannel::all_written(std::uint64_t turn) const {
  return wait_for(&Counters::written, turn + 1, 0, size_ - 1);
}

PendingPtr ShmChannel::all_reduced(std::uint64_t turn) const {
  return wait_for(&Counters::reduced, turn + 1, 0, size_ - 1);
}

PendingPtr ShmChannel::written_by(int rank, std::uint64_t turn) const {
  return wait_for(&Counters::written, turn + 1, rank, rank);
}

PendingPtr ShmChannel::wait_for(Counter counter, std::uint64_t value, int first, int last) const {
  Wait wait(*this, counter, value, first, last);
  if (cores_are_free_ ? wait.ready_in_a_moment() : wait.arrived()) return nullptr;
  return std::make_unique<Wait>(wait);
}

}  // namespace sirtaki
