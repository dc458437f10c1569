// The bells of all ranks of a job that is on one host, in memory that they share.
#pragma once

#include <memory>
#include <string>

#include "host/shm_segment.h"
#include "sleep/bell.h"

namespace sirtaki {

class HostBells {
 public:
  // Collective over the transport's ranks, which must all be on one host; blocks. Null on all ranks if one could not
  // have the memory; `why` then says what failed.
  static std::shared_ptr<HostBells> make(Transport& transport, std::string& why);

  HostBells(std::unique_ptr<ShmSegment> segment, int size);

  // Of that rank of the job.
  Bell& of(int rank) const { return bells_[rank]; }
  int size() const { return size_; }
  // The first rank whose process has died; -1 if all live or have left in order.
  int find_dead() const;

 private:
  std::unique_ptr<ShmSegment> segment_;
  Bell* bells_;
  int size_;
};

}  // namespace sirtaki
