#include "host/host_bells.h"

#include <new>

namespace sirtaki {

std::shared_ptr<HostBells> HostBells::make(Transport& transport, std::string& why) {
  auto segment = ShmSegment::make(transport, static_cast<std::size_t>(transport.size()) * sizeof(Bell), why);
  return segment == nullptr ? nullptr : std::make_shared<HostBells>(std::move(segment), transport.size());
}

// Fresh shared memory is zero, and so is a new bell. Constructing bells here would race with faster ranks.
HostBells::HostBells(std::unique_ptr<ShmSegment> segment, int size)
    : segment_(std::move(segment)),
      bells_(std::launder(reinterpret_cast<Bell*>(segment_->bytes().data()))),
      size_(size) {}

int HostBells::find_dead() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (bells_[rank].life.has_died()) return rank;
  }
  return -1;
}

}  // namespace sirtaki
