#include "plane/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

#include "plane/making.h"

namespace sirtaki {
namespace {

std::string random_name() {
  std::random_device random;
  std::string name = "/sirtaki-" + std::to_string(getuid()) + "-";
  for (int i = 0; i < 4; ++i) name += std::to_string(random());
  return name;
}

std::string system_error(const std::string& what) { return what + ": " + std::strerror(errno); }

// An open file that closes itself.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  File(File&& other) noexcept : descriptor_(other.release()) {}
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// What a process has of the segment, or why it has nothing.
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

Part map(File file, std::size_t size, int rank) {
  struct flock lock = lock_of(rank, F_WRLCK);
  if (fcntl(file.descriptor(), F_SETLK, &lock) != 0) return {.failure = system_error("locking shared memory")};
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    return {.failure = system_error("mapping " + std::to_string(size) + " bytes of shared memory")};
  }
  return {.bytes = {static_cast<std::byte*>(address), size}, .descriptor = file.release()};
}

// The first of the sizes that leaves as much free for others, and what comes after it, down to the smallest.
std::span<const std::size_t> modest(const File& file, std::span<const std::size_t> sizes) {
  struct statvfs room{};
  if (fstatvfs(file.descriptor(), &room) != 0 || room.f_blocks == 0) return sizes;  // unlimited
  const std::uint64_t free = static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
  while (sizes.size() > 1 && sizes.front() > free / 2) sizes = sizes.subspan(1);
  return sizes;
}

// Takes the room at once: without it a full /dev/shm would be found out by a SIGBUS in the middle of a step.
Part create(const std::string& name, std::span<const std::size_t> sizes) {
  File file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.descriptor() < 0) return {.failure = system_error("creating /dev/shm" + name)};
  std::string failure;
  for (const std::size_t size : modest(file, sizes)) {
    // What an attempt in vain has left would make the file longer than the next size: the others go by its length.
    if (ftruncate(file.descriptor(), 0) != 0) return {.failure = system_error("emptying /dev/shm" + name)};
    const int error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(size));
    if (error == 0) return map(std::move(file), size, 0);
    failure = "/dev/shm has no room for " + std::to_string(size) + " bytes: " + std::strerror(error) +
              " (in a container, give it more, for example --shm-size=1g)";
  }
  return {.failure = failure};
}

Part open_existing(const std::string& name, int rank) {
  File file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  struct stat facts{};
  if (file.descriptor() < 0 || fstat(file.descriptor(), &facts) != 0) {
    return {.failure = system_error("opening /dev/shm" + name)};
  }
  return map(std::move(file), static_cast<std::size_t>(facts.st_size), rank);
}

}  // namespace

std::unique_ptr<ShmSegment> ShmSegment::make(Transport& transport, std::size_t size, std::string& why) {
  return make(transport, std::span(&size, 1), why);
}

std::unique_ptr<ShmSegment> ShmSegment::make(Transport& transport, std::span<const std::size_t> sizes,
                                             std::string& why) {
  Part part;
  std::string name;
  if (transport.rank() == 0) {
    name = random_name();
    part = create(name, sizes);
    tell_all(transport, part.bytes.empty() ? "" : name);
  } else {
    name = hear_from(transport, 0);
    if (!name.empty()) part = open_existing(name, transport.rank());
  }
  std::unique_ptr<ShmSegment> segment(part.bytes.empty() ? nullptr : new ShmSegment(part.bytes, part.descriptor));
  why = first_failure(transport, part.failure);
  if (transport.rank() == 0) shm_unlink(name.c_str());
  return why.empty() ? std::move(segment) : nullptr;
}

std::unique_ptr<ShmSegment> ShmSegment::of_threads(std::shared_ptr<std::byte> memory, std::size_t size) {
  std::unique_ptr<ShmSegment> segment(new ShmSegment({memory.get(), size}, -1));
  segment->memory_ = std::move(memory);
  return segment;
}

bool ShmSegment::is_let_go_by(int rank) const {
  struct flock lock = lock_of(rank, F_WRLCK);
  return fcntl(descriptor_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

ShmSegment::~ShmSegment() {
  if (memory_ != nullptr) return;
  munmap(bytes_.data(), bytes_.size());
  close(descriptor_);
}

}  // namespace sirtaki
