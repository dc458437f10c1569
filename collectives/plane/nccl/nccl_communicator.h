// One NCCL communicator, on one stream. NCCL's calls that have to meet other ranks (making a communicator, the first
// collective that takes some way, leaving) are made on a thread of their own, so that whoever waits for them can do
// other things and can abort. All others only queue, and are made at once: a communicator that does not block would
// start a thread for each of them.
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

// Who takes part, the same on all ranks but for `rank`.
struct NcclMembers {
  int rank = 0;
  int size = 1;
  NcclUniqueId id{};
  bool kernels = false;  // all ranks can convert
};

// What decides by which connections NCCL carries a group out: equal only for groups that take the same. Sizes count by
// their order of magnitude.
class NcclWay {
 public:
  NcclWay& what(int number) { return mix(static_cast<std::uint64_t>(number) + 64); }
  NcclWay& size(std::int64_t count) { return mix(static_cast<std::uint64_t>(std::bit_width(to_unsigned(count)))); }
  std::uint64_t value() const { return value_; }

 private:
  static std::uint64_t to_unsigned(std::int64_t count) { return static_cast<std::uint64_t>(count); }
  NcclWay& mix(std::uint64_t number) {
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

  // First. Ends when all ranks are connected.
  Task connect();
  // Makes the calls as one group, now or, where no group has gone this way yet, soon: they are kept until what is
  // returned is ready, which is when all of them are queued on the stream.
  PendingPtr group(const NcclWay& way, std::function<void()> calls);
  // Throws NCCL's words unless the call has succeeded.
  void check(int result, const char* call) const { library_->check(result, call, comm_); }
  // The number of the operation that multiplies elements by the factor before it adds them up.
  int scaled_sum(DType dtype, double factor);

  // Throws what has gone wrong with what was queued.
  void check_queued() const;
  // Ends what is queued, on this rank, whatever other ranks do.
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
  std::unordered_set<std::uint64_t> known_ways_;
};

}  // namespace sirtaki
