// One NCCL communicator, on one stream. Some calls wait for other ranks: to make a communicator, the first collective
// of a kind, and to destroy it. These run on a separate thread, so that the engine stays free and can abort them. All
// other calls only queue work and are made at once. NCCL's nonblocking communicators would start a thread for each
// call.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>

#include "base/task.h"
#include "device/device.h"
#include "plane/nccl/nccl_library.h"

namespace sirtaki {

// The members. Except for `rank`, it is the same on all ranks.
struct NcclMembers {
  int rank = 0;
  int size = 1;
  NcclUniqueId id{};
  bool kernels = false;  // all ranks can convert dtypes on the GPU
};

// Identifies the connections that NCCL uses for a group of calls: equal for groups that use the same connections. Sizes
// count by their order of magnitude.
class NcclOperation {
 public:
  NcclOperation& what(int number) { return mix(static_cast<std::uint64_t>(number) + 64); }
  NcclOperation& size(std::int64_t count) {
    return mix(static_cast<std::uint64_t>(std::bit_width(to_unsigned(count))));
  }
  std::uint64_t value() const { return value_; }

 private:
  static std::uint64_t to_unsigned(std::int64_t count) { return static_cast<std::uint64_t>(count); }
  NcclOperation& mix(std::uint64_t number) {
    value_ = (value_ ^ number) * 0x100000001b3ULL;
    value_ ^= value_ >> 29;
    return *this;
  }

  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

class NcclCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream, NcclMembers members);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const NcclMembers& members() const { return members_; }
  Device& device() const { return device_; }
  Stream stream() const { return stream_; }
  const NcclCalls& calls() const { return library_->calls; }
  NcclComm handle() const { return comm_; }

  // Call it first. It ends when all ranks are connected.
  Task connect();
  // Makes the calls as one NCCL group: at once, or on the separate thread if its connections are new. The result is
  // ready when all calls are queued on the stream.
  PendingPtr group(const NcclOperation& way, std::function<void()> calls);
  // Throws NCCL's message unless the call succeeded.
  void check(int result, const char* call) const { library_->check(result, call, comm_); }
  // The number of the operation that multiplies elements by the factor before it adds them up.
  int scaled_sum(DType dtype, double factor);

  // Throws if queued work has failed.
  void check_queued() const;
  // Aborts the queued work of this rank, independently of other ranks.
  void abort();

 private:
  void make_group(const std::function<void()>& calls);
  void leave();

  std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  Stream stream_;
  NcclMembers members_;
  NcclComm comm_ = nullptr;
  std::map<std::pair<DType, double>, int> scaled_sums_;
  std::unordered_set<std::uint64_t> connected_operations_;
};

}  // namespace sirtaki
