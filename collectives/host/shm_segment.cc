#include "host/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/descriptor.h"
#include "host/setup_exchange.h"

namespace sirtaki {
namespace {

std::string system_error(const std::string& what) { return what + ": " + std::strerror(errno); }

// Not by std::random_device, which would tie a wheel to the glibc of the machine that built it. Where the system gives
// no random bytes, the process number stays.
std::string random_name() {
  std::array<std::uint32_t, 4> random{static_cast<std::uint32_t>(getpid())};
  static_cast<void>(!getrandom(random.data(), sizeof(random), 0));
  std::string name = "/sirtaki-" + std::to_string(getuid()) + "-";
  for (const std::uint32_t number : random) name += std::to_string(number);
  return name;
}

// A process's mapping of the segment, or why it has none.
struct Part {
  std::span<std::byte> bytes{};
  int descriptor = -1;
  std::string failure{};
};

struct flock lock_of(int rank, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

Part map(Descriptor file, std::size_t size, int rank) {
  struct flock lock = lock_of(rank, F_WRLCK);
  if (fcntl(file.get(), F_SETLK, &lock) != 0) return {.failure = system_error("locking shared memory")};
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (address == MAP_FAILED) {
    return {.failure = system_error("mapping " + std::to_string(size) + " bytes of shared memory")};
  }
  return {.bytes = {static_cast<std::byte*>(address), size}, .descriptor = file.release()};
}

// The sizes from the first that fits in half of the free memory on; at least the last size.
std::span<const std::size_t> modest(const Descriptor& file, std::span<const std::size_t> sizes) {
  struct statvfs file_system{};
  if (fstatvfs(file.get(), &file_system) != 0 || file_system.f_blocks == 0) return sizes;  // unlimited
  const std::uint64_t free = static_cast<std::uint64_t>(file_system.f_bavail) * file_system.f_frsize;
  while (sizes.size() > 1 && sizes.front() > free / 2) sizes = sizes.subspan(1);
  return sizes;
}

Descriptor named_file(const std::string& name) {
  return Descriptor(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
}

// A file without a name, so that no file is left behind, whenever this process ends. If the system has no such files:
// a file whose name is removed at once.
Descriptor nameless_file() {
  Descriptor file(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() >= 0) return file;
  const std::string name = random_name();
  Descriptor named = named_file(name);
  if (named.get() >= 0) shm_unlink(name.c_str());
  return named;
}

// What other ranks need to open the file: process number, descriptor, and the file's device and inode. They check
// device and inode, since in another container the process number may belong to another process.
std::string place_of(int descriptor) {
  struct stat facts{};
  static_cast<void>(fstat(descriptor, &facts));  // if it fails, no rank accepts the file by this text
  std::string place;
  for (const std::uint64_t number : {static_cast<std::uint64_t>(getpid()), static_cast<std::uint64_t>(descriptor),
                                     std::uint64_t{facts.st_dev}, std::uint64_t{facts.st_ino}}) {
    place += std::to_string(number) + " ";
  }
  return place;
}

// Allocates all memory now. Otherwise a full /dev/shm would show only later, as a SIGBUS in the middle of a step.
Part reserve(Descriptor file, std::span<const std::size_t> sizes) {
  if (file.get() < 0) return {.failure = system_error("creating a file in /dev/shm")};
  std::string failure;
  for (const std::size_t size : modest(file, sizes)) {
    // A failed attempt may leave the file longer than the next size, and the other ranks map its whole length.
    if (ftruncate(file.get(), 0) != 0) return {.failure = system_error("emptying a file in /dev/shm")};
    const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(size));
    if (error == 0) return map(std::move(file), size, 0);
    failure = "/dev/shm has no room for " + std::to_string(size) + " bytes: " + std::strerror(error) +
              " (in a container, give it more, for example --shm-size=1g)";
  }
  return {.failure = failure};
}

Part map_whole(Descriptor file, const std::string& path, int rank) {
  struct stat facts{};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0) {
    return {.failure = system_error("opening " + path)};
  }
  return map(std::move(file), static_cast<std::size_t>(facts.st_size), rank);
}

Part open_by_place(const std::string& place, int rank) {
  std::istringstream numbers(place);
  std::uint64_t process = 0;
  std::uint64_t descriptor = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  numbers >> process >> descriptor >> device >> inode;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  struct stat facts{};
  if (stat(path.c_str(), &facts) == 0 && (facts.st_dev != device || facts.st_ino != inode)) {
    return {.failure = "opening " + path + ": process " + std::to_string(process) + " is not rank 0 here"};
  }
  return map_whole(Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC)), path, rank);
}

Part open_by_name(const std::string& name, int rank) {
  return map_whole(Descriptor(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0)), "/dev/shm" + name, rank);
}

}  // namespace

std::unique_ptr<ShmSegment> ShmSegment::make(Transport& transport, std::size_t size, std::string& why) {
  return make(transport, std::span(&size, 1), why);
}

std::unique_ptr<ShmSegment> ShmSegment::make(Transport& transport, std::span<const std::size_t> sizes,
                                             std::string& why) {
  bool made = false;
  auto segment = share(transport, sizes, false, made, why);
  // Processes in different containers may share /dev/shm although they do not see each other.
  if (made && !why.empty()) segment = share(transport, sizes, true, made, why);
  return segment;
}

// `by_name`: the file has a name until all ranks have opened it. `made`: rank 0 made the file; the same on all ranks.
std::unique_ptr<ShmSegment> ShmSegment::share(Transport& transport, std::span<const std::size_t> sizes, bool by_name,
                                              bool& made, std::string& why) {
  Part part;
  const std::string name = by_name && transport.rank() == 0 ? random_name() : "";
  std::string file_name;
  if (transport.rank() == 0) {
    part = reserve(by_name ? named_file(name) : nameless_file(), sizes);
    if (!part.bytes.empty()) file_name = by_name ? name : place_of(part.descriptor);
    send_text_to_all(transport, file_name);
  } else {
    file_name = receive_text(transport, 0);
    if (!file_name.empty())
      part = by_name ? open_by_name(file_name, transport.rank()) : open_by_place(file_name, transport.rank());
  }
  made = !file_name.empty();
  std::unique_ptr<ShmSegment> segment(part.bytes.empty() ? nullptr : new ShmSegment(part.bytes, part.descriptor));
  why = first_failure(transport, part.failure);
  if (!name.empty()) shm_unlink(name.c_str());
  return why.empty() ? std::move(segment) : nullptr;
}

std::unique_ptr<ShmSegment> ShmSegment::of_threads(std::shared_ptr<std::byte> memory, std::size_t size) {
  std::unique_ptr<ShmSegment> segment(new ShmSegment({memory.get(), size}, -1));
  segment->memory_ = std::move(memory);
  return segment;
}

bool ShmSegment::is_released_by(int rank) const {
  struct flock lock = lock_of(rank, F_WRLCK);
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

ShmSegment::~ShmSegment() {
  if (memory_ != nullptr) return;
  munmap(bytes_.data(), bytes_.size());
  close(descriptor_);
}

}  // namespace sirtaki
