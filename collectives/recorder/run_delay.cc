#include "recorder/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string_view>

#include "base/descriptor.h"

namespace sirtaki {
// The file has three numbers: time on a core, time ready without a core, and the number of time slices.
std::int64_t run_delay() {
  thread_local const Descriptor file(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 96> text{};
  const ssize_t length = ::pread(file.get(), text.data(), text.size(), 0);
  if (length <= 0) return -1;
  std::string_view rest(text.data(), static_cast<std::size_t>(length));
  rest.remove_prefix(std::min(rest.size(), rest.find(' ') + 1));
  std::int64_t delay = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), delay);
  return delay;
}

}  // namespace sirtaki
