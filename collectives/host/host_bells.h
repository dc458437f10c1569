// The bells of all ranks of a job on one host, in shared memory.
#pragma once

#include <memory>
#include <string>

#include "host/shm_segment.h"
#include "sleep/bell.h"

namespace sirtaki {

class HostBells {
 public:
  // Collective over the transport's ranks, which must all be on one host; blocks. Null on all ranks if a rank cannot
  // get the memory; `why` then says what failed.
  static std::shared_ptr<HostBells> make(Transport& transport, std::string& why);

  HostBells(std::unique_ptr<ShmSegment> segment, int size);

  // `rank`: in the job.
  Bell& of(int rank) const { return bells_[rank]; }
  int size() const { return size_; }
  // The lowest rank whose process has died; -1 if every rank lives or has left normally.
  int find_dead() const;

 private:
  std::unique_ptr<ShmSegment> segment_;
  Bell* bells_;
  int size_;
};

}  // namespace sirtaki
