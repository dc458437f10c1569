// How much memory the ranks of a host share where it is hard to get.
#include "plane/shm_segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "transport/loopback.h"

namespace {

constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kSmall = std::size_t{64} << 10;
std::atomic<off_t> room{0};  // of the file system below

}  // namespace

// In place of the C library's: a file system that is full in the middle of the file and keeps what it had given, as
// ext4 does, and the C library itself where a file system cannot reserve.
extern "C" int posix_fallocate(int descriptor, off_t offset, off_t length) {
  const bool fits = offset + length <= room.load();
  struct stat before{};
  if (fstat(descriptor, &before) != 0) return errno;
  const off_t end = std::max(before.st_size, fits ? offset + length : room.load());  // never shrinks the file
  if (ftruncate(descriptor, end) != 0) return errno;
  return fits ? 0 : ENOSPC;
}

namespace sirtaki::testing {
namespace {

void all_ranks_see_the_size_that_fitted() {
  room = static_cast<off_t>(kLarge - kSmall);
  std::array<std::unique_ptr<ShmSegment>, 2> segments;
  auto transports = make_loopback(2);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < segments.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::string why;
      segments[rank] = ShmSegment::make(*transports[rank], std::array{kLarge, kSmall}, why);
      check(segments[rank] != nullptr, why);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& segment : segments) check_equal(segment->bytes().size(), kSmall, "bytes that a rank has");
}

}  // namespace
}  // namespace sirtaki::testing

int main() { sirtaki::testing::all_ranks_see_the_size_that_fitted(); }
