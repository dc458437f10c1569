#include "plane/nccl/nccl_library.h"

#include <stdexcept>

#include "base/error.h"
#include "loader/symbol_reader.h"

namespace sirtaki {
namespace {

NcclCalls read_calls(SymbolReader& symbols) {
  NcclCalls calls{};
  symbols.read(calls.GetVersion, "ncclGetVersion");
  symbols.read(calls.GetErrorString, "ncclGetErrorString");
  symbols.read(calls.GetLastError, "ncclGetLastError");
  symbols.read(calls.GetUniqueId, "ncclGetUniqueId");
  symbols.read(calls.CommInitRankConfig, "ncclCommInitRankConfig");
  symbols.read(calls.CommFinalize, "ncclCommFinalize");
  symbols.read(calls.CommDestroy, "ncclCommDestroy");
  symbols.read(calls.CommAbort, "ncclCommAbort");
  symbols.read(calls.CommGetAsyncError, "ncclCommGetAsyncError");
  symbols.read(calls.RedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  symbols.read(calls.RedOpDestroy, "ncclRedOpDestroy");
  symbols.read(calls.GroupStart, "ncclGroupStart");
  symbols.read(calls.GroupEnd, "ncclGroupEnd");
  symbols.read(calls.AllReduce, "ncclAllReduce");
  symbols.read(calls.Reduce, "ncclReduce");
  symbols.read(calls.ReduceScatter, "ncclReduceScatter");
  symbols.read(calls.AllGather, "ncclAllGather");
  symbols.read(calls.Broadcast, "ncclBroadcast");
  symbols.read(calls.Send, "ncclSend");
  symbols.read(calls.Recv, "ncclRecv");
  return calls;
}

std::string version_text(int number) {
  const int base = number >= 10000 ? 10000 : 1000;
  return std::to_string(number / base) + "." + std::to_string(number % base / 100) + "." + std::to_string(number % 100);
}

std::shared_ptr<const NcclLibrary> bind(const SharedLibrary& library) {
  SymbolReader symbols(library);
  const NcclCalls calls = read_calls(symbols);
  int version = 0;
  if (calls.GetVersion != nullptr) calls.GetVersion(&version);
  symbols.require_all("NCCL " + version_text(version) + " is older than 2.14: it");
  return std::make_shared<const NcclLibrary>(NcclLibrary{library.path(), version_text(version), calls});
}

}  // namespace

void NcclLibrary::check(int result, const char* call, NcclComm comm) const {
  if (result == kNcclSuccess) return;
  const char* last = calls.GetLastError(comm);
  const std::string details = last != nullptr && *last != '\0' ? std::string(" (") + last + ")" : "";
  throw Error(ErrorKind::kAborted, std::string(call) + " failed: " + calls.GetErrorString(result) + details);
}

std::shared_ptr<const NcclLibrary> load_nccl(const std::vector<std::string>& paths, std::string& why) {
  const std::vector<std::string> loaded = SharedLibrary::loaded("libnccl.so");
  return bind_first(loaded.empty() ? paths : loaded, bind, why);
}

}  // namespace sirtaki
