// Memory for large results is used again, within a limit, and never by two results.
#include "memory/large_blocks.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "memory/host_buffer.h"

namespace sirtaki::testing {
namespace {

constexpr std::size_t kBytes = std::size_t{3} << 20;

TEST_CASE("A dropped result's memory serves the next result of about that size") {
  const std::byte* first = nullptr;
  {
    const HostBuffer buffer(kBytes);
    first = buffer.data();
    CHECK_MESSAGE(buffer.size() == kBytes, "the buffer has the size that was asked for");
  }
  const HostBuffer again(kBytes - 5000);
  CHECK_MESSAGE(again.data() == first, "the block was kept");
  const HostBuffer other(kBytes);
  CHECK_MESSAGE(other.data() != first, "a block in use is not handed out");
  const std::size_t before = kept_bytes();
  {
    const HostBuffer large(4 * kBytes);
  }
  CHECK_MESSAGE(kept_bytes() >= before + 4 * kBytes, "the large block is kept, too");
  const HostBuffer small(kBytes);
  CHECK_MESSAGE(kept_bytes() >= before + 4 * kBytes, "a block that is much too large stays free");
}

TEST_CASE("Live buffers never overlap") {
  std::vector<HostBuffer> live;
  for (int i = 0; i < 40; ++i) {
    live.emplace_back(kLargeBlock + static_cast<std::size_t>(i % 7) * kLargeBlock);
    std::memset(live.back().data(), i, live.back().size());
    if (i % 3 == 0) live.erase(live.begin());
  }
  for (const HostBuffer& buffer : live) {
    const std::byte* const end = buffer.data() + buffer.size() - 1;
    CHECK_MESSAGE((*buffer.data() == *end && std::memcmp(buffer.data(), buffer.data() + 1, buffer.size() - 1) == 0),
                  "another buffer has written here");
  }
}

TEST_CASE("Free blocks stay within the limit") {
  for (int i = 1; i <= 8; ++i) {
    std::vector<HostBuffer> live;
    for (int k = 0; k < 4; ++k) live.emplace_back(static_cast<std::size_t>(i) * (std::size_t{12} << 20));
  }
  CHECK_MESSAGE(kept_bytes() <= kMostKeptBytes, "the oldest blocks were unmapped");
  {
    const HostBuffer huge(kMostKeptBytes + kLargeBlock);
  }
  CHECK_MESSAGE(kept_bytes() <= kMostKeptBytes, "a block above the limit is not kept");
}

}  // namespace
}  // namespace sirtaki::testing
