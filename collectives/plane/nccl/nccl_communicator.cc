#include "plane/nccl/nccl_communicator.h"

#include <chrono>
#include <thread>

#include "base/error.h"
#include "math/dtype_dispatch.h"
#include "plane/nccl/nccl_reduction.h"
#include "sleep/blocking_call.h"

namespace sirtaki {
namespace {

constexpr std::chrono::seconds kFarewell{5};
// Bounds the memory of a program whose collectives are always new.
constexpr std::size_t kMostWays = 4096;

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream,
                                   NcclMembers members)
    : library_(std::move(library)), device_(device), stream_(stream), members_(members) {}

NcclCommunicator::~NcclCommunicator() {
  try {
    if (comm_ != nullptr) leave();
  } catch (const Error&) {
    // The GPU has failed, or its driver was unloaded at process exit.
  }
}

void NcclCommunicator::leave() {
  device_.with_context([&] {
    for (const auto& [key, op] : scaled_sums_) calls().RedOpDestroy(op, comm_);
  });
  BlockingCall farewell([library = library_, &device = device_, comm = comm_] {
    device.with_context([&] {
      library->calls.CommFinalize(comm);
      library->calls.CommDestroy(comm);
    });
  });
  const auto limit = std::chrono::steady_clock::now() + kFarewell;
  while (!farewell.ready()) {
    if (std::chrono::steady_clock::now() >= limit) return abort();  // it waits for ranks that have left
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Task NcclCommunicator::connect() {
  struct Made {
    NcclConfig config;
    NcclComm comm = nullptr;
  };
  const auto made = std::make_shared<Made>();
  auto init = std::make_unique<BlockingCall>([made, library = library_, &device = device_, members = members_] {
    device.with_context([&] {
      const int result =
          library->calls.CommInitRankConfig(&made->comm, members.size, members.id, members.rank, &made->config);
      library->check(result, "ncclCommInitRankConfig");
    });
  });
  co_await std::move(init);
  comm_ = made->comm;
}

void NcclCommunicator::make_group(const std::function<void()>& calls_of_group) {
  device_.with_context([&] {
    check(calls().GroupStart(), "ncclGroupStart");
    try {
      calls_of_group();
    } catch (...) {
      calls().GroupEnd();
      throw;
    }
    check(calls().GroupEnd(), "ncclGroupEnd");
  });
}

PendingPtr NcclCommunicator::group(const NcclOperation& way, std::function<void()> calls_of_group) {
  if (connected_operations_.contains(way.value())) {
    make_group(calls_of_group);
    return nullptr;
  }
  if (connected_operations_.size() >= kMostWays) connected_operations_.clear();
  connected_operations_.insert(way.value());
  return std::make_unique<BlockingCall>([this, made = std::move(calls_of_group)] { make_group(made); });
}

int NcclCommunicator::scaled_sum(DType dtype, double factor) {
  const auto [entry, is_new] = scaled_sums_.try_emplace({dtype, factor}, kNcclSum);
  if (!is_new) return entry->second;
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    T scalar;
    if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
      scalar = T(static_cast<float>(factor));
    } else {
      scalar = static_cast<T>(factor);
    }
    check(calls().RedOpCreatePreMulSum(&entry->second, &scalar, nccl_type(dtype), kNcclScalarHost, comm_),
          "ncclRedOpCreatePreMulSum");
  });
  return entry->second;
}

void NcclCommunicator::check_queued() const {
  if (comm_ == nullptr) return;
  int state = kNcclSuccess;
  check(calls().CommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  check(state, "NCCL");
}

void NcclCommunicator::abort() {
  if (comm_ == nullptr) return;
  device_.with_context([&] { calls().CommAbort(comm_); });
  comm_ = nullptr;
}

}  // namespace sirtaki
