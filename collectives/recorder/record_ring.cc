#include "recorder/record_ring.h"

#include <algorithm>
#include <new>

namespace sirtaki {
RecordRing::Words RecordRing::zeros(std::size_t count) {
  Words words(static_cast<std::uint64_t*>(std::calloc(count, sizeof(std::uint64_t))));
  if (words == nullptr) throw std::bad_alloc();
  return words;
}

RecordRing::RecordRing(std::size_t capacity, Writers writers)
    : capacity_(capacity),
      writers_(writers),
      words_(zeros(capacity * kWords)),
      stamps_(writers == Writers::kSeveral ? zeros(capacity) : nullptr) {}

std::size_t RecordRing::bytes() const {
  return capacity_ * (sizeof(Record) + (stamps_ == nullptr ? 0 : sizeof(std::uint64_t)));
}

Record RecordRing::load(std::size_t slot) const {
  std::array<std::uint64_t, kWords> words{};
  for (std::size_t i = 0; i < kWords; ++i) {
    words[i] = Atomic(words_[slot * kWords + i]).load(std::memory_order_relaxed);
  }
  return std::bit_cast<Record>(words);
}

// Not inline, so that the path of a gradient has this code in a near cache after the first record. A thread among
// several may stop in the middle while the others write a whole lap. Then their record for this slot is dropped.
void RecordRing::write(std::uint64_t first, std::uint64_t second, std::uint64_t third, std::uint64_t fourth) {
  const bool is_alone = writers_ == Writers::kOne;
  const std::uint64_t number = is_alone ? head_ : Atomic(head_).fetch_add(1, std::memory_order_relaxed);
  const std::size_t slot = slot_of(number);
  if (!is_alone && Atomic(stamps_[slot]).exchange(kBusy, std::memory_order_acquire) == kBusy) return;
  // Keeps the words behind the earlier head or stamp: a reader that sees one of them also sees that.
  std::atomic_thread_fence(std::memory_order_release);
  std::uint64_t* const words = &words_[slot * kWords];
  Atomic(words[0]).store(first, std::memory_order_relaxed);
  Atomic(words[1]).store(second, std::memory_order_relaxed);
  Atomic(words[2]).store(third, std::memory_order_relaxed);
  Atomic(words[3]).store(fourth, std::memory_order_relaxed);
  if (is_alone) {
    Atomic(head_).store(number + 1, std::memory_order_release);
    __builtin_prefetch(&words_[slot_of(number + kAhead) * kWords], 1);
  } else {
    Atomic(stamps_[slot]).store(number + 1, std::memory_order_release);
  }
}

std::uint64_t RecordRing::read(std::uint64_t since, std::vector<Record>& into, std::uint64_t& lost) const {
  const std::uint64_t head = Atomic(head_).load(std::memory_order_acquire);
  since = std::min(since, head);
  const std::uint64_t oldest = head < capacity_ ? 0 : head - capacity_ + 1;
  lost += std::max(since, oldest) - since;
  into.reserve(into.size() + static_cast<std::size_t>(head - std::max(since, oldest)));
  for (std::uint64_t number = std::max(since, oldest); number < head; ++number) {
    const std::size_t slot = slot_of(number);
    const std::uint64_t stamp = stamps_ ? Atomic(stamps_[slot]).load(std::memory_order_acquire) : 0;
    const Record record = load(slot);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (is_whole(number, stamp)) {
      into.push_back(record);
    } else {
      ++lost;
    }
  }
  return head;
}

// Call it after the record was read. `stamp`: of its slot, from before.
bool RecordRing::is_whole(std::uint64_t number, std::uint64_t stamp) const {
  if (stamps_ != nullptr) {
    return stamp == number + 1 && Atomic(stamps_[slot_of(number)]).load(std::memory_order_relaxed) == stamp;
  }
  const std::uint64_t head = Atomic(head_).load(std::memory_order_relaxed);
  return number + capacity_ > head;  // the writer may already be at `head`, which is the same slot a lap later
}

}  // namespace sirtaki
