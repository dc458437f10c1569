#include "plane/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "error.h"
#include "plane/blocking.h"

namespace sirtaki {
namespace {

constexpr int kTag = 0;
constexpr std::size_t kTextSize = 512;
using Text = std::array<char, kTextSize>;

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
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

std::span<std::byte> map(const File& file, std::size_t size, std::string& why) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    why = system_error("mapping " + std::to_string(size) + " bytes of shared memory");
    return {};
  }
  return {static_cast<std::byte*>(address), size};
}

// Takes the room at once: without it a full /dev/shm would be found out by a SIGBUS in the middle of a step.
std::span<std::byte> create(const std::string& name, std::size_t size, std::string& why) {
  const File file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.descriptor() < 0) {
    why = system_error("creating /dev/shm" + name);
    return {};
  }
  const int error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(size));
  if (error != 0) {
    why = "/dev/shm has no room for " + std::to_string(size) + " bytes: " + std::strerror(error) +
          " (in a container, give it more, for example --shm-size=1g)";
    return {};
  }
  return map(file, size, why);
}

std::span<std::byte> open_existing(const std::string& name, std::size_t size, std::string& why) {
  const File file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (file.descriptor() < 0) {
    why = system_error("opening /dev/shm" + name);
    return {};
  }
  return map(file, size, why);
}

Text to_text(const std::string& value) {
  Text text{};
  std::memcpy(text.data(), value.data(), std::min(value.size(), kTextSize - 1));
  return text;
}

void send_to_all(Transport& transport, const std::string& value) {
  const Text text = to_text(value);
  for (int rank = 1; rank < transport.size(); ++rank) {
    wait_for(transport.send_data(rank, kTag, std::as_bytes(std::span(text))));
  }
}

std::string receive_from(Transport& transport, int rank) {
  Text text{};
  wait_for(transport.receive_data(rank, kTag, std::as_writable_bytes(std::span(text))));
  text.back() = '\0';
  return text.data();
}

// Rank 0 learns of every rank's failure and tells everybody the first.
std::string share_failure(Transport& transport, const std::string& own) {
  if (transport.rank() != 0) {
    const Text text = to_text(own);
    wait_for(transport.send_data(0, kTag, std::as_bytes(std::span(text))));
    return receive_from(transport, 0);
  }
  std::string first = own.empty() ? "" : "rank 0: " + own;
  for (int rank = 1; rank < transport.size(); ++rank) {
    const std::string theirs = receive_from(transport, rank);
    if (first.empty() && !theirs.empty()) first = "rank " + std::to_string(rank) + ": " + theirs;
  }
  send_to_all(transport, first);
  return first;
}

}  // namespace

std::unique_ptr<ShmSegment> ShmSegment::make(Transport& transport, std::size_t size, std::string& why) {
  std::span<std::byte> bytes;
  std::string failure;
  std::string name;
  if (transport.rank() == 0) {
    name = random_name();
    bytes = create(name, size, failure);
    send_to_all(transport, bytes.empty() ? "" : name);
  } else {
    name = receive_from(transport, 0);
    if (!name.empty()) bytes = open_existing(name, size, failure);
  }
  std::unique_ptr<ShmSegment> segment(bytes.empty() ? nullptr : new ShmSegment(bytes));
  why = share_failure(transport, failure);
  if (transport.rank() == 0) shm_unlink(name.c_str());
  return why.empty() ? std::move(segment) : nullptr;
}

ShmSegment::~ShmSegment() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace sirtaki
