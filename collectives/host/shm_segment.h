// Memory that the ranks of one host share, for as long as any of them lives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/transport.h"

namespace sirtaki {

class ShmSegment {
 public:
  // Collective over the transport's ranks, which must all be on one host; blocks. The file has no name, so that nothing
  // is left behind however and whenever the job ends; ranks that do not see each other's processes use a random name
  // until all have it. Only this user can open it. Null on all ranks if one of them could not have it; `why` then says
  // what failed, on every rank.
  static std::unique_ptr<ShmSegment> make(Transport& transport, std::size_t size, std::string& why);

  // The same, of the first of the sizes, in descending order, that can be had and leaves at least as much room again;
  // else of the last.
  static std::unique_ptr<ShmSegment> make(Transport& transport, std::span<const std::size_t> sizes, std::string& why);

  // Memory of this process, zero at first, for ranks that are its threads: tools that look for races see through it.
  static std::unique_ptr<ShmSegment> of_threads(std::shared_ptr<std::byte> memory, std::size_t size);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

  // Does no process hold the rank's part in this any longer: has it let go of it, or died? Not to be asked about ranks
  // that are threads of this process.
  bool is_let_go_by(int rank) const;

 private:
  static std::unique_ptr<ShmSegment> share(Transport& transport, std::span<const std::size_t> sizes, bool by_name,
                                           bool& made, std::string& why);

  ShmSegment(std::span<std::byte> bytes, int descriptor) : bytes_(bytes), descriptor_(descriptor) {}

  std::span<std::byte> bytes_;
  std::shared_ptr<std::byte> memory_;  // null if mapped
  int descriptor_;  // carries this process's lock of byte `rank`, which the kernel lifts when the process ends
};

}  // namespace sirtaki
