#include "plane/shm_channel.h"

#include <new>

namespace sirtaki {

// Ranks `first` to `last` have all come to `value`; each is looked at until it has.
class ShmChannel::Wait final : public Pending {
 public:
  Wait(const Counters* counters, Counter counter, std::uint64_t value, int first, int last)
      : counters_(counters), counter_(counter), value_(value), next_(first), last_(last) {}

  bool ready() override {
    while (next_ <= last_ && (counters_[next_].*counter_).load(std::memory_order_acquire) >= value_) ++next_;
    return next_ > last_;
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
      slot_size_(slot_size) {}

std::byte* ShmChannel::slot(int rank, std::uint64_t turn) const {
  return slots_ + (static_cast<std::size_t>(rank) * kSlots + turn % kSlots) * slot_size_;
}

PendingPtr ShmChannel::may_write(std::uint64_t turn) const {
  return turn < kSlots ? nullptr : wait_for_all(&Counters::done, turn - kSlots + 1);
}

PendingPtr ShmChannel::all_written(std::uint64_t turn) const { return wait_for_all(&Counters::written, turn + 1); }

PendingPtr ShmChannel::all_reduced(std::uint64_t turn) const { return wait_for_all(&Counters::reduced, turn + 1); }

PendingPtr ShmChannel::written_by(int rank, std::uint64_t turn) const {
  return std::make_unique<Wait>(counters_, &Counters::written, turn + 1, rank, rank);
}

PendingPtr ShmChannel::wait_for_all(Counter counter, std::uint64_t value) const {
  return std::make_unique<Wait>(counters_, counter, value, 0, size_ - 1);
}

}  // namespace sirtaki
