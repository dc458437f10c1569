#include "plane/shm_channel.h"

#include <sched.h>

#include <chrono>
#include <cstring>
#include <new>

#include "plane/blocking.h"

namespace sirtaki {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than a piece takes to be reduced, shorter than a time slice, should the ranks have landed on one core.
constexpr std::chrono::microseconds kSpin{20};
constexpr int kLooks = 32;  // between two looks at the clock

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Ranks `first` to `last` have all come to `value`; each is looked at until it has.
class ShmChannel::Wait final : public Pending {
 public:
  Wait(const Counters* counters, Counter counter, std::uint64_t value, int first, int last)
      : counters_(counters), counter_(counter), value_(value), next_(first), last_(last) {}

  bool ready() override {
    while (next_ <= last_ && (counters_[next_].*counter_).load(std::memory_order_acquire) >= value_) ++next_;
    return next_ > last_;
  }

  bool ready_in_a_moment() {
    for (int look = 0; look < kLooks; ++look) {
      if (ready()) return true;
    }
    const auto limit = Clock::now() + kSpin;
    do {
      for (int look = 0; look < kLooks; ++look) {
        if (ready()) return true;
        relax();
      }
    } while (Clock::now() < limit);
    return false;
  }

 private:
  const Counters* counters_;
  Counter counter_;
  std::uint64_t value_;
  int next_;
  int last_;
};

std::size_t ShmChannel::segment_size(int ranks, std::size_t slot_size) {
  return static_cast<std::size_t>(ranks) * (sizeof(Counters) + kSlots * slot_size);
}

// Fresh shared memory is zero, which is what the counters begin with; constructing them would race with faster ranks.
ShmChannel::ShmChannel(std::unique_ptr<ShmSegment> segment, int rank, int size, std::size_t slot_size)
    : segment_(std::move(segment)),
      counters_(std::launder(reinterpret_cast<Counters*>(segment_->bytes().data()))),
      slots_(segment_->bytes().data() + static_cast<std::size_t>(size) * sizeof(Counters)),
      rank_(rank),
      size_(size),
      slot_size_(slot_size),
      cores_are_free_(find_cores()) {}

// Every rank may be bound to cores of its own, so what counts is the cores that they have together.
bool ShmChannel::find_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);  // nothing is known if the host has more cores than fit in
  static_cast<void>(sched_getaffinity(0, sizeof(all), &all));
  const std::uint64_t turn = take_turns(1);
  std::memcpy(slot(rank_, turn), &all, sizeof(all));
  say_written(turn);
  sirtaki::wait_for(all_written(turn));
  for (int r = 0; r < size_; ++r) {
    cpu_set_t theirs;
    std::memcpy(&theirs, slot(r, turn), sizeof(theirs));
    CPU_OR(&all, &all, &theirs);
  }
  say_done(turn);
  return CPU_COUNT(&all) >= size_;
}

std::byte* ShmChannel::slot(int rank, std::uint64_t turn) const {
  return slots_ + (static_cast<std::size_t>(rank) * kSlots + turn % kSlots) * slot_size_;
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
  Wait wait(counters_, counter, value, first, last);
  if (cores_are_free_ ? wait.ready_in_a_moment() : wait.ready()) return nullptr;
  return std::make_unique<Wait>(wait);
}

}  // namespace sirtaki
