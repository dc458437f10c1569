// NCCL, loaded at run time: its functions and constants as documented, for version 2.14 and later.
#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace sirtaki {

using NcclComm = void*;

struct NcclUniqueId {
  char bytes[128];
};

// The fields of version 2.17. A newer library uses its defaults for the rest; an older one reads fewer fields.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 1;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

inline constexpr int kNcclSuccess = 0;

enum NcclType : int {
  kNcclInt8,
  kNcclUint8,
  kNcclInt32,
  kNcclUint32,
  kNcclInt64,
  kNcclUint64,
  kNcclFloat16,
  kNcclFloat32,
  kNcclFloat64,
  kNcclBfloat16,
};
enum NcclOp : int { kNcclSum, kNcclProd, kNcclMax, kNcclMin, kNcclAvg };
inline constexpr int kNcclScalarHost = 1;

struct NcclCalls {
  int (*GetVersion)(int*);
  const char* (*GetErrorString)(int);
  const char* (*GetLastError)(NcclComm);
  int (*GetUniqueId)(NcclUniqueId*);
  int (*CommInitRankConfig)(NcclComm*, int, NcclUniqueId, int, NcclConfig*);
  int (*CommFinalize)(NcclComm);
  int (*CommDestroy)(NcclComm);
  int (*CommAbort)(NcclComm);
  int (*CommGetAsyncError)(NcclComm, int*);
  int (*RedOpCreatePreMulSum)(int*, void*, int, int, NcclComm);
  int (*RedOpDestroy)(int, NcclComm);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*AllReduce)(const void*, void*, std::size_t, int, int, NcclComm, Stream);
  int (*Reduce)(const void*, void*, std::size_t, int, int, int, NcclComm, Stream);
  int (*ReduceScatter)(const void*, void*, std::size_t, int, int, NcclComm, Stream);
  int (*AllGather)(const void*, void*, std::size_t, int, NcclComm, Stream);
  int (*Broadcast)(const void*, void*, std::size_t, int, int, NcclComm, Stream);
  int (*Send)(const void*, std::size_t, int, int, NcclComm, Stream);
  int (*Recv)(void*, std::size_t, int, int, NcclComm, Stream);
};

struct NcclLibrary {
  std::string path;
  std::string version;  // "2.28.9"
  NcclCalls calls;

  // Throws Error(kAborted) with NCCL's message unless the result is success.
  void check(int result, const char* call, NcclComm comm = nullptr) const;
};

// Returns the NCCL that the process has loaded already, else loads the first path that works. Null if there is none;
// `why` then holds the loader's messages.
std::shared_ptr<const NcclLibrary> load_nccl(const std::vector<std::string>& paths, std::string& why);

}  // namespace sirtaki
