// MpiLibrary over the functions and constants of one loaded library.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "mpi/mpi_calls.h"
#include "mpi/mpi_library.h"

namespace sirtaki {

// The library's path and its own version text.
struct MpiOrigin {
  std::string path;
  std::string version;
  std::function<bool()> takes_gpu_memory;
};

template <typename Handle>
class LoadedMpi final : public MpiLibrary {
 public:
  LoadedMpi(MpiOrigin origin, MpiAbi<Handle> abi, MpiCalls<Handle> calls)
      : origin_(std::move(origin)), abi_(abi), calls_(calls) {}

  std::string_view abi() const override { return abi_.name; }
  const std::string& path() const override { return origin_.path; }
  const std::string& version() const override { return origin_.version; }

  bool takes_gpu_memory() const override { return origin_.takes_gpu_memory(); }

  bool is_initialized() const override {
    int flag = 0;
    check(calls_.Initialized(&flag), "MPI_Initialized");
    return flag != 0;
  }

  bool is_finalized() const override {
    int flag = 0;
    check(calls_.Finalized(&flag), "MPI_Finalized");
    return flag != 0;
  }

  MpiThreads init(MpiThreads wanted) const override {
    int provided = 0;
    check(calls_.Init_thread(nullptr, nullptr, abi_.threads[index(wanted)], &provided), "MPI_Init_thread");
    return threads_of(provided);
  }

  MpiThreads threads() const override {
    int provided = 0;
    check(calls_.Query_thread(&provided), "MPI_Query_thread");
    return threads_of(provided);
  }

  void finalize() const override { check(calls_.Finalize(), "MPI_Finalize"); }
  void abort(int exit_code) const override { check(calls_.Abort(abi_.comm_world, exit_code), "MPI_Abort"); }

  MpiComm comm_world() const override { return opaque<MpiComm>(abi_.comm_world); }
  bool is_null(MpiComm comm) const override { return native(comm) == abi_.comm_null || native(comm) == Handle{}; }

  bool is_intercommunicator(MpiComm comm) const override {
    int flag = 0;
    check(calls_.Comm_test_inter(native(comm), &flag), "MPI_Comm_test_inter");
    return flag != 0;
  }

  int rank(MpiComm comm) const override {
    int rank = 0;
    check(calls_.Comm_rank(native(comm), &rank), "MPI_Comm_rank");
    return rank;
  }

  int size(MpiComm comm) const override {
    int size = 0;
    check(calls_.Comm_size(native(comm), &size), "MPI_Comm_size");
    return size;
  }

  MpiComm duplicate(MpiComm comm) const override {
    Handle made{};
    check(calls_.Comm_dup(native(comm), &made), "MPI_Comm_dup");
    return adopt(made);
  }

  MpiComm create_group(MpiComm comm, std::span<const int> ranks, int tag) const override {
    Handle everyone{}, chosen{}, made{};
    check(calls_.Comm_group(native(comm), &everyone), "MPI_Comm_group");
    check(calls_.Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &chosen), "MPI_Group_incl");
    check(calls_.Comm_create_group(native(comm), chosen, tag, &made), "MPI_Comm_create_group");
    check(calls_.Group_free(&chosen), "MPI_Group_free");
    check(calls_.Group_free(&everyone), "MPI_Group_free");
    return adopt(made);
  }

  MpiComm split(MpiComm comm, int color, int key) const override {
    Handle made{};
    check(calls_.Comm_split(native(comm), color < 0 ? kMpiUndefined : color, key, &made), "MPI_Comm_split");
    return adopt(made);
  }

  void free(MpiComm comm) const override {
    Handle handle = native(comm);
    check(calls_.Comm_free(&handle), "MPI_Comm_free");
  }

  MpiRequest isend(std::span<const std::byte> bytes, int to, int tag, MpiComm comm) const override {
    Handle request{};
    const int count = static_cast<int>(bytes.size());
    check(calls_.Isend(bytes.data(), count, type(MpiType::kUint8), to, tag, native(comm), &request), "MPI_Isend");
    return opaque<MpiRequest>(request);
  }

  MpiRequest irecv(std::span<std::byte> bytes, int from, int tag, MpiComm comm) const override {
    Handle request{};
    const int count = static_cast<int>(bytes.size());
    check(calls_.Irecv(bytes.data(), count, type(MpiType::kUint8), from, tag, native(comm), &request), "MPI_Irecv");
    return opaque<MpiRequest>(request);
  }

  bool test(MpiRequest& request) const override {
    Handle handle = native(request);
    int flag = 0;
    check(calls_.Test(&handle, &flag, abi_.status_ignore), "MPI_Test");
    request = opaque<MpiRequest>(handle);
    return flag != 0;
  }

  int test_any(std::span<MpiRequest> requests) const override {
    for (std::size_t begin = 0; begin < requests.size(); begin += kTestedAtOnce) {
      const int found = test_some(requests.subspan(begin, std::min(kTestedAtOnce, requests.size() - begin)));
      if (found >= 0) return static_cast<int>(begin) + found;
    }
    return -1;
  }

  void cancel(MpiRequest request) const override {
    Handle handle = native(request);
    check(calls_.Cancel(&handle), "MPI_Cancel");
  }

  void free(MpiRequest request) const override {
    Handle handle = native(request);
    check(calls_.Request_free(&handle), "MPI_Request_free");
  }

  MpiRequest iallreduce(const void* in, void* out, int count, MpiType element, MpiOp op, MpiComm comm) const override {
    Handle request{};
    check(calls_.Iallreduce(input(in, out), out, count, type(element), operation(op), native(comm), &request),
          "MPI_Iallreduce");
    return opaque<MpiRequest>(request);
  }

  MpiRequest ibcast(void* buffer, int count, MpiType element, int root, MpiComm comm) const override {
    Handle request{};
    check(calls_.Ibcast(buffer, count, type(element), root, native(comm), &request), "MPI_Ibcast");
    return opaque<MpiRequest>(request);
  }

  MpiRequest ireduce_scatter(const void* in, void* out, const int* counts, MpiType element, MpiOp op,
                             MpiComm comm) const override {
    Handle request{};
    check(calls_.Ireduce_scatter(input(in, out), out, counts, type(element), operation(op), native(comm), &request),
          "MPI_Ireduce_scatter");
    return opaque<MpiRequest>(request);
  }

  MpiRequest iallgatherv(const void* in, int count, void* out, const int* counts, const int* displacements,
                         MpiType element, MpiComm comm) const override {
    Handle request{};
    check(
        calls_.Iallgatherv(in, count, type(element), out, counts, displacements, type(element), native(comm), &request),
        "MPI_Iallgatherv");
    return opaque<MpiRequest>(request);
  }

  MpiRequest ialltoallv(const void* in, const int* send_counts, const int* send_displacements, void* out,
                        const int* receive_counts, const int* receive_displacements, MpiType element,
                        MpiComm comm) const override {
    Handle request{};
    check(calls_.Ialltoallv(in, send_counts, send_displacements, type(element), out, receive_counts,
                            receive_displacements, type(element), native(comm), &request),
          "MPI_Ialltoallv");
    return opaque<MpiRequest>(request);
  }

 private:
  static constexpr std::size_t kTestedAtOnce = 64;

  template <typename Enum>
  static constexpr std::size_t index(Enum value) {
    return static_cast<std::size_t>(value);
  }

  template <typename Opaque>
  static Handle native(Opaque opaque) {
    const auto bits = static_cast<std::uint64_t>(opaque);
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(bits));
    } else {
      return static_cast<Handle>(bits);
    }
  }

  template <typename Opaque>
  static Opaque opaque(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return static_cast<Opaque>(reinterpret_cast<std::uintptr_t>(handle));
    } else {
      return static_cast<Opaque>(static_cast<std::uint32_t>(handle));
    }
  }

  Handle type(MpiType type) const { return abi_.types[index(type)]; }
  Handle operation(MpiOp op) const { return abi_.ops[index(op)]; }
  const void* input(const void* in, const void* out) const { return in == out ? abi_.in_place : in; }

  MpiThreads threads_of(int level) const {
    const auto found = std::find(abi_.threads.begin(), abi_.threads.end(), level);
    return found == abi_.threads.end() ? MpiThreads::kSingle : static_cast<MpiThreads>(found - abi_.threads.begin());
  }

  MpiComm adopt(Handle made) const {
    const auto comm = opaque<MpiComm>(made);
    if (!is_null(comm)) check(calls_.Comm_set_errhandler(made, abi_.errors_return), "MPI_Comm_set_errhandler");
    return comm;
  }

  int test_some(std::span<MpiRequest> requests) const {
    std::array<Handle, kTestedAtOnce> handles;
    std::transform(requests.begin(), requests.end(), handles.begin(), native<MpiRequest>);
    int found = kMpiUndefined;
    int flag = 0;
    check(calls_.Testany(static_cast<int>(requests.size()), handles.data(), &found, &flag, abi_.status_ignore),
          "MPI_Testany");
    return flag != 0 && found != kMpiUndefined ? found : -1;
  }

  void check(int code, const char* call) const {
    if (code != kMpiSuccess) [[unlikely]]
      fail(code, call);
  }

  [[noreturn]] void fail(int code, const char* call) const {
    std::array<char, 8192> text{};
    int length = 0;
    const bool known = calls_.Error_string(code, text.data(), &length) == kMpiSuccess;
    throw Error(ErrorKind::kAborted,
                std::string(call) + " failed: " + (known ? text.data() : "error code " + std::to_string(code)));
  }

  MpiOrigin origin_;
  MpiAbi<Handle> abi_;
  MpiCalls<Handle> calls_;
};

}  // namespace sirtaki
