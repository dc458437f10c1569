#include "mpi/mpi_library.h"

#include <array>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.h"
#include "loader/shared_library.h"
#include "mpi/mpi_abi_mpich.h"
#include "mpi/mpi_abi_openmpi.h"
#include "mpi/mpi_abi_standard.h"
#include "mpi/mpi_calls.h"
#include "mpi/mpi_loaded.h"

namespace sirtaki {
namespace {

using LibraryPtr = std::shared_ptr<const MpiLibrary>;

template <typename... Arguments>
bool call(const SharedLibrary& library, const char* name, Arguments*... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments*...)>(library.symbol(name));
  return function != nullptr && function(arguments...) == kMpiSuccess;
}

std::string version_of(const SharedLibrary& library) {
  std::array<char, 8192> text{};
  int length = 0;
  if (!call(library, "MPI_Get_library_version", text.data(), &length)) return "";
  const std::string version = text.data();
  return version.substr(0, version.find_last_not_of(" \t\r\n") + 1);
}

// Open MPI and MPICH have the first function, MPICH and its relatives the second. A library with neither cannot do it.
bool takes_cuda_memory(const SharedLibrary& library) {
  constexpr int kCuda = 0;
  if (const auto query = reinterpret_cast<int (*)()>(library.symbol("MPIX_Query_cuda_support"))) return query() != 0;
  const auto query = reinterpret_cast<int (*)(int, int*)>(library.symbol("MPIX_GPU_query_support"));
  int supported = 0;
  return query != nullptr && query(kCuda, &supported) == kMpiSuccess && supported != 0;
}

constexpr const char* kNoMpi = "it is not an MPI 3 library: it";

template <typename Handle>
LibraryPtr bind(const SharedLibrary& library, std::string version, MpiAbi<Handle> abi, SymbolReader& symbols) {
  const auto calls = read_mpi_calls<Handle>(symbols);
  symbols.require_all(kNoMpi);
  MpiOrigin origin{library.path(), std::move(version), [library] { return takes_cuda_memory(library); }};
  return std::make_shared<LoadedMpi<Handle>>(std::move(origin), abi, calls);
}

// The standard ABI has a symbol of its own; Open MPI is recognised by its symbols, MPICH only by its version text.
LibraryPtr bind(const SharedLibrary& library) {
  SymbolReader symbols(library);
  const std::string version = version_of(library);
  int major = -1;
  int minor = -1;
  if (call(library, "MPI_Abi_get_version", &major, &minor) && major >= 1) {
    if (major > 1) throw std::runtime_error("its MPI ABI " + std::to_string(major) + " is newer than 1, the one known");
    return bind(library, version, standard_mpi_abi(), symbols);
  }
  if (library.symbol("ompi_mpi_comm_world") != nullptr) {
    library.make_global();  // its plug-ins need its symbols
    return bind(library, version, open_mpi_abi([&](const char* name) { return symbols.address(name); }), symbols);
  }
  for (const char* family : {"MPICH", "Intel(R) MPI", "MVAPICH"}) {
    if (version.find(family) != std::string::npos) return bind(library, version, mpich_mpi_abi(), symbols);
  }
  read_mpi_calls<int>(symbols);
  symbols.require_all(kNoMpi);
  throw std::runtime_error("its binary interface is none of standard, MPICH, Open MPI; it calls itself \"" + version +
                           "\"");
}

bool is_initialized(const SharedLibrary& library) {
  int flag = 0;
  return call(library, "MPI_Initialized", &flag) && flag != 0;
}

// In every implementation the file name begins with libmpi. So do the Fortran and C++ libraries, which only call it.
std::optional<SharedLibrary> loaded_mpi() {
  std::optional<SharedLibrary> found;
  for (const std::string& path : SharedLibrary::loaded("libmpi")) {
    SharedLibrary library = SharedLibrary::open(path);
    if (library.defines("MPI_Init_thread") && (!found || is_initialized(library))) found = library;
  }
  return found;
}

LibraryPtr open_and_bind(const std::string& path) {
  SharedLibrary library = SharedLibrary::open(path);
  try {
    return bind(library);
  } catch (...) {
    library.close();
    throw;
  }
}

}  // namespace

LibraryPtr load_mpi(std::span<const std::string> paths) {
  if (const auto library = loaded_mpi()) {
    try {
      return bind(*library);
    } catch (const std::exception& error) {
      throw Error(ErrorKind::kPrecondition, "cannot use " + library->path() +
                                                ", the MPI that this process has loaded (" + error.what() +
                                                "); a second MPI beside it would not work");
    }
  }
  std::string reasons;
  for (const std::string& path : paths) {
    try {
      return open_and_bind(path);
    } catch (const std::exception& error) {
      reasons += "\n  " + path + ": " + error.what();
    }
  }
  throw Error(ErrorKind::kPrecondition, paths.empty() ? "no MPI library found: there was no path to try"
                                                      : "no MPI library could be loaded:" + reasons);
}

std::map<std::string, std::string> describe(const MpiLibrary& library) {
  return {{"path", library.path()}, {"version", library.version()}, {"abi", std::string(library.abi())}};
}

}  // namespace sirtaki
