#include "plane/nccl_communicator.h"

#include <chrono>
#include <thread>

#include "dtype_dispatch.h"
#include "error.h"
#include "plane/nccl_reduction.h"

namespace sirtaki {
namespace {

constexpr std::chrono::seconds kFarewell{5};

class Settled final : public Pending {
 public:
  explicit Settled(std::function<bool()> settled) : settled_(std::move(settled)) {}
  bool ready() override { return settled_(); }

 private:
  std::function<bool()> settled_;
};

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, Device& device, Stream stream,
                                   NcclMembers members)
    : library_(std::move(library)), device_(device), stream_(stream), members_(members) {}

NcclCommunicator::~NcclCommunicator() {
  try {
    if (comm_ != nullptr) leave();
  } catch (const Error&) {
    // The GPU, or its driver at the end of the process, has gone before.
  }
}

void NcclCommunicator::leave() {
  const auto limit = std::chrono::steady_clock::now() + kFarewell;
  device_.within([&] {
    for (const auto& [key, op] : scaled_sums_) calls().RedOpDestroy(op, comm_);
    int state = calls().CommFinalize(comm_);
    while (state == kNcclInProgress && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (calls().CommGetAsyncError(comm_, &state) != kNcclSuccess) break;
    }
    // Whoever waits for ranks that are gone would wait for ever.
    state == kNcclSuccess ? calls().CommDestroy(comm_) : calls().CommAbort(comm_);
  });
}

Task NcclCommunicator::connect() {
  NcclConfig config;
  device_.within([&] {
    const int result = calls().CommInitRankConfig(&comm_, members_.size, members_.id, members_.rank, &config);
    check(result, "ncclCommInitRankConfig");
  });
  co_await settled();
}

bool NcclCommunicator::is_settled() const {
  int state = kNcclSuccess;
  check(calls().CommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  check(state, "NCCL");
  return state == kNcclSuccess;
}

PendingPtr NcclCommunicator::settled() const {
  if (is_settled()) return nullptr;
  return std::make_unique<Settled>([this] { return is_settled(); });
}

PendingPtr NcclCommunicator::group(const std::function<void()>& calls_of_group) {
  int result = kNcclSuccess;
  device_.within([&] {
    check(calls().GroupStart(), "ncclGroupStart");
    try {
      calls_of_group();
    } catch (...) {
      calls().GroupEnd();
      throw;
    }
    result = calls().GroupEnd();
    check(result, "ncclGroupEnd");
  });
  return result == kNcclSuccess ? nullptr : settled();
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
  if (comm_ != nullptr) static_cast<void>(is_settled());
}

void NcclCommunicator::abort() {
  if (comm_ == nullptr) return;
  device_.within([&] { calls().CommAbort(comm_); });
  comm_ = nullptr;
}

}  // namespace sirtaki
