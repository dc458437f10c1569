#include "loader/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <stdexcept>
#include <utility>

namespace sirtaki {
namespace {

std::string file_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name[0] == '\0') return otherwise;
  return map->l_name;
}

std::string name_in(const std::string& path) { return std::filesystem::path(path).filename().string(); }

}  // namespace

SharedLibrary SharedLibrary::open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  return SharedLibrary(handle, file_of(handle, path));
}

std::vector<std::string> SharedLibrary::loaded(const std::string& prefix) {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  std::erase_if(paths, [&](const std::string& path) { return !name_in(path).starts_with(prefix); });
  return paths;
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

bool SharedLibrary::defines(const char* name) const {
  Dl_info info;
  void* address = symbol(name);
  return address != nullptr && dladdr(address, &info) != 0 && path_ == info.dli_fname;
}

void SharedLibrary::make_global() const { dlopen(path_.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD); }

void SharedLibrary::close() { dlclose(std::exchange(handle_, nullptr)); }

}  // namespace sirtaki
