#include "recorder/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>

namespace sirtaki {
namespace {

// A descriptor of the calling thread's own file.
class OwnFile {
 public:
  OwnFile() : descriptor_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;
  ~OwnFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

// The file has three numbers: time on a core, time ready without a core, and the number of time slices.
std::int64_t run_delay() {
  thread_local const OwnFile file;
  std::array<char, 96> text{};
  const ssize_t length = ::pread(file.descriptor(), text.data(), text.size(), 0);
  if (length <= 0) return -1;
  std::string_view rest(text.data(), static_cast<std::size_t>(length));
  rest.remove_prefix(std::min(rest.size(), rest.find(' ') + 1));
  std::int64_t delay = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), delay);
  return delay;
}

}  // namespace sirtaki
