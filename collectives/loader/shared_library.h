// A shared library opened at run time. A library in use is never closed: libraries with threads or exit handlers would
// crash.
#pragma once

#include <string>
#include <vector>

namespace sirtaki {

class SharedLibrary {
 public:
  // Loads the file, or reuses it if it is loaded already. Throws std::runtime_error with the loader's own message.
  static SharedLibrary open(const std::string& path);
  // Files in this process whose name begins with `prefix`.
  static std::vector<std::string> loaded(const std::string& prefix);

  // Null if the library does not define the symbol.
  void* symbol(const char* name) const;
  // True if the symbol is defined in this file itself rather than in one that it needs.
  bool defines(const char* name) const;
  // Lets libraries that are loaded later find this one's symbols.
  void make_global() const;
  // Closes a library that is not used after all.
  void close();
  const std::string& path() const { return path_; }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

}  // namespace sirtaki
