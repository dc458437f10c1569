#include "device/nvrtc.h"

#include <array>
#include <stdexcept>

#include "loader/symbol_reader.h"

namespace sirtaki {
namespace {

using Program = void*;

struct Calls {
  int (*Version)(int*, int*);
  const char* (*GetErrorString)(int);
  int (*CreateProgram)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*DestroyProgram)(Program*);
  int (*CompileProgram)(Program, int, const char* const*);
  int (*GetCUBINSize)(Program, std::size_t*);
  int (*GetCUBIN)(Program, char*);
  int (*GetProgramLogSize)(Program, std::size_t*);
  int (*GetProgramLog)(Program, char*);
};

class LoadedNvrtc final : public Nvrtc {
 public:
  LoadedNvrtc(std::string path, Calls calls) : path_(std::move(path)), calls_(calls) {}

  const std::string& path() const override { return path_; }

  std::string version() const override {
    int major = 0;
    int minor = 0;
    calls_.Version(&major, &minor);
    return std::to_string(major) + "." + std::to_string(minor);
  }

  std::vector<char> compile(const std::string& source, int major, int minor) const override {
    Program program = nullptr;
    check(calls_.CreateProgram(&program, source.c_str(), "sirtaki.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
    const std::string architecture = "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor);
    const std::array<const char*, 2> options = {architecture.c_str(), "--std=c++17"};
    const int result = calls_.CompileProgram(program, static_cast<int>(options.size()), options.data());
    if (result != 0) {
      const std::string log = log_of(program);
      calls_.DestroyProgram(&program);
      throw std::runtime_error("NVRTC " + version() + ", " + architecture + ": " + calls_.GetErrorString(result) +
                               ": " + log);
    }
    std::size_t size = 0;
    check(calls_.GetCUBINSize(program, &size), "nvrtcGetCUBINSize");
    std::vector<char> code(size);
    check(calls_.GetCUBIN(program, code.data()), "nvrtcGetCUBIN");
    calls_.DestroyProgram(&program);
    return code;
  }

 private:
  void check(int result, const char* call) const {
    if (result != 0) throw std::runtime_error(std::string(call) + " failed: " + calls_.GetErrorString(result));
  }

  std::string log_of(Program program) const {
    std::size_t size = 0;
    if (calls_.GetProgramLogSize(program, &size) != 0 || size == 0) return "";
    std::string log(size, '\0');
    calls_.GetProgramLog(program, log.data());
    return log;
  }

  std::string path_;
  Calls calls_;
};

std::shared_ptr<const Nvrtc> bind(const SharedLibrary& library) {
  SymbolReader symbols(library);
  Calls calls{};
  symbols.read(calls.Version, "nvrtcVersion");
  symbols.read(calls.GetErrorString, "nvrtcGetErrorString");
  symbols.read(calls.CreateProgram, "nvrtcCreateProgram");
  symbols.read(calls.DestroyProgram, "nvrtcDestroyProgram");
  symbols.read(calls.CompileProgram, "nvrtcCompileProgram");
  symbols.read(calls.GetCUBINSize, "nvrtcGetCUBINSize");
  symbols.read(calls.GetCUBIN, "nvrtcGetCUBIN");
  symbols.read(calls.GetProgramLogSize, "nvrtcGetProgramLogSize");
  symbols.read(calls.GetProgramLog, "nvrtcGetProgramLog");
  symbols.require_all(library.path());
  return std::make_shared<const LoadedNvrtc>(library.path(), calls);
}

}  // namespace

std::shared_ptr<const Nvrtc> load_nvrtc(const std::vector<std::string>& paths, std::string& why) {
  std::vector<std::string> candidates = SharedLibrary::loaded("libnvrtc.so");
  candidates.insert(candidates.end(), paths.begin(), paths.end());
  return bind_first(candidates, bind, why);
}

}  // namespace sirtaki
