// A shared library opened at run time. Never closed once used: libraries with threads and exit handlers do not survive
// it.
#pragma once

#include <string>
#include <vector>

namespace sirtaki {

class SharedLibrary {
 public:
  // Loads the file, or joins the one that is loaded. Throws std::runtime_error with the loader's own words.
  static SharedLibrary open(const std::string& path);
  // Files in this process whose name begins with `prefix`.
  static std::vector<std::string> loaded(const std::string& prefix);

  // Null when the library does not have it.
  void* symbol(const char* name) const;
  // True if the symbol is defined in this file itself rather than in one that it needs.
  bool defines(const char* name) const;
  // Lets libraries that are loaded later find this one's symbols.
  void make_global() const;
  // For a library that turned out useless.
  void close();
  const std::string& path() const { return path_; }

 private:
  SharedLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

}  // namespace sirtaki
