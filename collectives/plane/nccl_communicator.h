// One NCCL communicator that does not block, on one stream: calls come back before they are carried out, so that
// nothing hangs that cannot be aborted.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "device/device.h"
#include "plane/nccl_library.h"
#include "task.h"

namespace sirtaki {

// Who takes part, the same on all ranks but for `rank`.
struct NcclMembers {
  int rank = 0;
  int size = 1;
  NcclUniqueId id{};
  bool kernels = false;  // all ranks can convert
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
  // Makes the calls as one group; ready when all of them are queued on the stream.
  PendingPtr group(const std::function<void()>& calls);
  // Throws NCCL's words unless the call has succeeded or is under way.
  void check(int result, const char* call) const { library_->check(result, call, comm_); }
  // The number of the operation that multiplies elements by the factor before it adds them up.
  int scaled_sum(DType dtype, double factor);

  // Throws what has gone wrong with what was queued.
  void check_queued() const;
  // Ends what is queued, on this rank, whatever other ranks do.
  void abort();

 private:
  PendingPtr settled() const;
  bool is_settled() const;
  void leave();

  std::shared_ptr<const NcclLibrary> library_;
  Device& device_;
  Stream stream_;
  NcclMembers members_;
  NcclComm comm_ = nullptr;
  std::map<std::pair<DType, double>, int> scaled_sums_;
};

}  // namespace sirtaki
