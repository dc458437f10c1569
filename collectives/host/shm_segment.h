// Memory that the ranks of one host share. It exists as long as one of them uses it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/transport.h"

namespace sirtaki {

class ShmSegment {
 public:
  // Collective over the transport's ranks, which must all be on one host; blocks. The file has no name, so no file is
  // left behind, however the job ends. Ranks that do not see each other's processes use a random name until all have
  // opened the file. Only this user can open it. Null on all ranks if one of them could not map it; `why` then says on
  // every rank what failed.
  static std::unique_ptr<ShmSegment> make(Transport& transport, std::size_t size, std::string& why);

  // The same, for sizes in descending order. Takes the first size that can be allocated and that fills at most half of
  // the free memory; otherwise the last size.
  static std::unique_ptr<ShmSegment> make(Transport& transport, std::span<const std::size_t> sizes, std::string& why);

  // For ranks that are threads of this process: its own memory, zero at first. Race detectors can follow this memory,
  // but not a mapping.
  static std::unique_ptr<ShmSegment> of_threads(std::shared_ptr<std::byte> memory, std::size_t size);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

  // Has this rank's process released the segment, or died? Not for ranks that are threads of this process.
  bool is_released_by(int rank) const;

 private:
  static std::unique_ptr<ShmSegment> share(Transport& transport, std::span<const std::size_t> sizes, bool by_name,
                                           bool& made, std::string& why);

  ShmSegment(std::span<std::byte> bytes, int descriptor) : bytes_(bytes), descriptor_(descriptor) {}

  std::span<std::byte> bytes_;
  std::shared_ptr<std::byte> memory_;  // null if mapped
  int descriptor_;  // holds this process's lock on byte `rank`; the kernel releases it when the process ends
};

}  // namespace sirtaki
