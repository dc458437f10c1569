// CUDA's run-time compiler (NVRTC), loaded at run time, so that building Sirtaki needs no CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace sirtaki {

class Nvrtc {
 public:
  virtual ~Nvrtc() = default;
  virtual const std::string& path() const = 0;
  virtual std::string version() const = 0;
  // Machine code of the source for compute capability major.minor. Throws std::runtime_error with the compiler's
  // message.
  virtual std::vector<char> compile(const std::string& source, int major, int minor) const = 0;
};

// Returns the NVRTC that the process has loaded already, else loads the first path that works. Null if there is none;
// `why` then holds the loader's messages.
std::shared_ptr<const Nvrtc> load_nvrtc(const std::vector<std::string>& paths, std::string& why);

}  // namespace sirtaki
