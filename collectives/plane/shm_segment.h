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
  // Collective over the transport's ranks, which must all be on one host; blocks. The file has a random name and is
  // readable by this user alone; its name is removed again before this returns, so that nothing is left behind however
  // the job ends. Null on all ranks if one of them could not have it; `why` then says what failed, on every rank.
  static std::unique_ptr<ShmSegment> make(Transport& transport, std::size_t size, std::string& why);

  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit ShmSegment(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

}  // namespace sirtaki
