// The functions of a shared library, and which of several libraries has all that are needed.
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

// What `bind` makes of the first of the paths that loads and suits it, that is, for which it throws nothing. Null if
// there is none; `why` then holds what was thrown, for each path.
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
