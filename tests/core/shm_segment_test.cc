// How the ranks of a host come to share memory, where it is hard to get too.
#include "host/shm_segment.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "transport/loopback.h"

namespace {

constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr std::size_t kSmall = std::size_t{64} << 10;
std::atomic<off_t> room{0};                 // of the file system below
std::atomic<bool> processes_unseen{false};  // as in containers of their own
std::atomic<int> names{0};                  // that were made or opened

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

extern "C" int open(const char* path, int flags, ...) {
  if (processes_unseen && std::string_view(path).starts_with("/proc/")) {
    errno = ENOENT;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, S_IRUSR | S_IWUSR));
}

extern "C" int shm_open(const char* name, int flags, mode_t mode) {
  ++names;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, (std::string("/dev/shm") + name).c_str(), flags, mode));
}

namespace sirtaki::testing {
namespace {

std::array<std::unique_ptr<ShmSegment>, 2> on_two_ranks(std::span<const std::size_t> sizes) {
  std::array<std::unique_ptr<ShmSegment>, 2> segments;
  auto transports = make_loopback(2);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < segments.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::string why;
      segments[rank] = ShmSegment::make(*transports[rank], sizes, why);
      REQUIRE_MESSAGE(segments[rank] != nullptr, why);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return segments;
}

TEST_CASE("All ranks get the size that fitted") {
  room = static_cast<off_t>(kLarge - kSmall);
  for (const auto& segment : on_two_ranks(std::array{kLarge, kSmall})) {
    CHECK_MESSAGE(segment->bytes().size() == kSmall, "bytes that a rank has");
  }
}

void check_shared(std::span<const std::unique_ptr<ShmSegment>> segments) {
  segments[0]->bytes()[7] = std::byte{42};
  CHECK_MESSAGE(segments[1]->bytes()[7] == std::byte{42}, "the ranks have each their own memory");
}

// Whenever a process is killed, then, there is nothing to remove.
TEST_CASE("A segment never has a name in the file system") {
  room = static_cast<off_t>(kLarge);
  names = 0;
  check_shared(on_two_ranks(std::array{kLarge}));
  CHECK(names.load() == 0);
}

TEST_CASE("Ranks that cannot see each other's processes share by name") {
  processes_unseen = true;
  check_shared(on_two_ranks(std::array{kLarge}));
  processes_unseen = false;
  CHECK(names.load() == 2);
  const std::string own = "sirtaki-" + std::to_string(getuid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    CHECK_MESSAGE(!entry.path().filename().string().starts_with(own), "a name is left");
  }
}

}  // namespace
}  // namespace sirtaki::testing
