// Looks up functions in shared libraries, and finds the first library that has all functions that are needed.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "loader/shared_library.h"

namespace sirtaki {

// Looks symbols up and remembers those that are missing, so that one message can name them all.
class SymbolReader {
 public:
  explicit SymbolReader(const SharedLibrary& library) : library_(library) {}

  void* address(const char* name) {
    void* found = library_.symbol(name);
    if (found == nullptr) missing_.emplace_back(name);
    return found;
  }

  template <typename Function>
  void read(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(address(name));
  }

  // Throws std::runtime_error("<complaint> lacks <all that are missing>") if any is.
  void require_all(const std::string& complaint) const;

 private:
  const SharedLibrary& library_;
  std::vector<std::string> missing_;
};

// Calls `bind` with each library that loads, until one call does not throw, and returns that call's result. Null if all
// fail; `why` then holds the error for each path.
template <typename Bind>
auto bind_first(const std::vector<std::string>& paths, Bind bind, std::string& why)
    -> decltype(bind(SharedLibrary::open(""))) {
  if (paths.empty()) why = "there was no path to try";
  for (const std::string& path : paths) {
    try {
      return bind(SharedLibrary::open(path));
    } catch (const std::exception& error) {
      why += (why.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  return nullptr;
}

}  // namespace sirtaki
