// A ring of records that keeps the newest ones. Writing takes no lock and never waits; any thread may read meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "recorder/record.h"

namespace sirtaki {

class RecordRing {
 public:
  enum class Writers { kOne, kSeveral };

  // `capacity`: a power of two.
  RecordRing(std::size_t capacity, Writers writers);

  // One thread at a time, each of which sees the writes of the one before; any threads if there are several writers.
  // The words are put together in registers: a record that is stored by its fields and then loaded by words costs the
  // processor more than all else here.
  void write(const Record& record) {
    static_assert(kWords == 4 && std::endian::native == std::endian::little);
    const auto upper = [](auto value) { return std::uint64_t{static_cast<std::uint32_t>(value)} << 32; };
    const auto kinds = static_cast<std::uint32_t>(record.group | record.kind << 16 | record.verb << 24);
    write(static_cast<std::uint64_t>(record.time), record.bytes, record.number | upper(record.peer),
          kinds | upper(record.name));
  }

  // Appends the records from number `since` on, in order. Returns the number of the next record. Adds to `lost` the
  // number of records that were overwritten, or that were being written.
  std::uint64_t read(std::uint64_t since, std::vector<Record>& into, std::uint64_t& lost) const;

  std::size_t bytes() const;

 private:
  static constexpr std::uint64_t kAhead = 4;  // records, two cache lines: their memory is no longer in a near cache
  static constexpr std::size_t kWords = sizeof(Record) / sizeof(std::uint64_t);
  static constexpr std::uint64_t kBusy = ~std::uint64_t{0};
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Words = std::unique_ptr<std::uint64_t[], Free>;
  static Words zeros(std::size_t count);

  std::size_t slot_of(std::uint64_t number) const { return static_cast<std::size_t>(number) & (capacity_ - 1); }
  using Atomic = std::atomic_ref<std::uint64_t>;
  void write(std::uint64_t first, std::uint64_t second, std::uint64_t third, std::uint64_t fourth);
  Record load(std::size_t slot) const;
  bool is_whole(std::uint64_t number, std::uint64_t stamp) const;

  std::size_t capacity_;
  Writers writers_;
  // From calloc, so that pages that were never written cost no memory. Accessed by std::atomic_ref.
  Words words_;
  Words stamps_;  // of several writers: the number of the record in a slot plus 1, or kBusy
  // The number of the next record. The binding that reads is const, but std::atomic_ref takes no const objects.
  alignas(64) mutable std::uint64_t head_ = 0;
};

}  // namespace sirtaki
