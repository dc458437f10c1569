#include "plane/gpu/gpu.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "plane/gpu/gpu_capabilities.h"
#include "plane/gpu/mpi_gpu.h"
#include "plane/gpu/staged.h"
#include "plane/nccl/nccl.h"

namespace sirtaki {
namespace {

// Time for queued work to finish when the group ends.
constexpr std::chrono::seconds kFarewell{10};

class GpuPlane final : public DataPlane {
 public:
  GpuPlane(Transport& transport, std::vector<DataPlane*> host_planes, GpuOptions options)
      : transport_(transport), host_planes_(std::move(host_planes)), options_(std::move(options)) {}

  ~GpuPlane() override;

  std::string_view name() const override { return "gpu"; }
  bool supports(const PlaneQuery& query) const override {
    return query.device != kHostDevice && moves_data(query.verb);
  }
  std::string_view carrier() const override { return prepared_ ? way() : name(); }

  void begin(const StreamPosition& position) override;
  EventPtr end() override { return last_ = device_->record(stream_); }
  Stream stream() const override { return stream_; }
  Device* device() const override { return device_; }
  bool watch() override;
  void abort() override;

  Task allreduce(Reduction reduction, std::span<const Segment> segments) override {
    co_await prepare();
    if (hierarchical_ != nullptr && hierarchical_->can_reduce(reduction)) {
      co_await hierarchical_->allreduce(reduction, segments);
    } else if (nccl_ != nullptr && nccl_->can_reduce(reduction)) {
      co_await nccl_->allreduce(reduction, segments);
    } else if (mpi_ != nullptr && mpi_->can_reduce(reduction, 0)) {
      co_await mpi_->allreduce(reduction, segments);
    } else {
      std::int64_t longest = 0;
      for (const Segment& segment : segments) longest = std::max(longest, segment.count);
      co_await staged().allreduce(query(Verb::kAllreduce, reduction, longest), reduction, segments);
    }
  }

  Task broadcast(int root, std::size_t element_size, std::span<const Segment> segments) override {
    co_await prepare();
    if (nccl_ != nullptr) {
      co_await nccl_->broadcast(root, element_size, segments);
    } else if (mpi_ != nullptr) {
      co_await mpi_->broadcast(root, element_size, segments);
    } else {
      co_await staged().broadcast({.verb = Verb::kBroadcast, .dtype = DType::kUint8}, root, element_size, segments);
    }
  }

  Task allgather(std::size_t element_size, const Spread& spread) override {
    co_await prepare();
    if (nccl_ != nullptr) {
      co_await nccl_->allgather(element_size, spread);
    } else if (mpi_ != nullptr && mpi_->can_move(bytes_)) {
      co_await mpi_->allgather(element_size, spread);
    } else {
      co_await staged().allgather({.verb = Verb::kAllgather, .dtype = DType::kUint8}, element_size, spread);
    }
  }

  Task reducescatter(Reduction reduction, const Spread& spread) override {
    co_await prepare();
    if (nccl_ != nullptr && nccl_->can_reduce(reduction)) {
      co_await nccl_->reducescatter(reduction, spread);
    } else if (mpi_ != nullptr && mpi_->can_reduce(reduction, bytes_)) {
      co_await mpi_->reducescatter(reduction, spread);
    } else {
      co_await staged().reducescatter(query(Verb::kReducescatter, reduction, 0), reduction, spread);
    }
  }

  Task alltoall(std::size_t element_size, const Exchange& exchange) override {
    co_await prepare();
    if (nccl_ != nullptr) {
      co_await nccl_->alltoall(element_size, exchange);
    } else if (mpi_ != nullptr && mpi_->can_move(bytes_)) {
      co_await mpi_->alltoall(element_size, exchange);
    } else {
      co_await staged().alltoall({.verb = Verb::kAlltoall, .dtype = DType::kUint8, .bytes = bytes_}, element_size,
                                 exchange);
    }
  }

 private:
  static PlaneQuery query(Verb verb, const Reduction& reduction, std::int64_t count) {
    return {.verb = verb,
            .dtype = reduction.dtype,
            .op = reduction.asked(),
            .bytes = count * static_cast<std::int64_t>(size_of(reduction.dtype))};
  }

  Task prepare();
  Task connect(std::shared_ptr<const NcclLibrary> library, const GpuCard& own, const GpuCapabilities& agreement);
  void abort_nccl();
  std::string_view way() const;
  NcclUniqueId own_id(const NcclLibrary& library);
  StagedCollectives& staged();

  Transport& transport_;
  std::vector<DataPlane*> host_planes_;
  GpuOptions options_;
  Device* device_ = nullptr;
  Stream stream_ = nullptr;
  bool prepared_ = false;
  std::unique_ptr<StagedCollectives> staged_;
  std::unique_ptr<NcclCollectives> nccl_;
  std::unique_ptr<HierarchicalNccl> hierarchical_;
  std::unique_ptr<MpiGpuCollectives> mpi_;
  std::int64_t bytes_ = 0;  // of the batch
  EventPtr last_;
  bool aborted_ = false;
};

GpuPlane::~GpuPlane() {
  if (device_ == nullptr || aborted_) return;
  try {
    const auto limit = std::chrono::steady_clock::now() + kFarewell;
    while (last_ != nullptr && !last_->reached() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (last_ != nullptr && !last_->reached()) abort_nccl();  // other ranks have left
    nccl_.reset();
    hierarchical_.reset();
    mpi_.reset();
    staged_.reset();
    device_->destroy(stream_);
  } catch (const Error&) {
    // The GPU has failed; threads that wait for results get the error from here or from the framework.
  }
}

void GpuPlane::begin(const StreamPosition& position) {
  const bool has_joined = position.device == kHostDevice;
  if (device_ == nullptr) {
    try {
      device_ = &options_.devices(has_joined ? options_.usual() : position.device);
    } catch (const Error& error) {  // on this rank only; the other ranks continue without this GPU
      throw Error(ErrorKind::kAborted, error.what());
    }
    stream_ = device_->make_stream();
  } else if (!has_joined && device_->number() != position.device) {
    throw Error(ErrorKind::kAborted, "a tensor on " + name_of_device(position.device) + " came after tensors on " +
                                         name_of_device(device_->number()) + "; a rank uses one GPU");
  }
  bytes_ = position.bytes;
  for (const EventPtr& event : position.after) event->block_stream(stream_);
}

// Before the first collective.
Task GpuPlane::prepare() {
  if (std::exchange(prepared_, true)) co_return;
  GpuCard own{device_->identity(), "", "", device_->lacks_kernels(), options_.mpi != nullptr};
  std::shared_ptr<const NcclLibrary> library;
  NcclUniqueId id{};
  if (options_.operations != "mpi") {
    library = options_.load_nccl(own.lacks_nccl);
    if (library != nullptr) own.nccl = library->version;
    if (library != nullptr && transport_.rank() == 0) id = own_id(*library);
  }
  GpuCapabilities agreement;
  co_await exchange_cards(transport_, own, options_.operations, id, agreement);
  if (!agreement.refusal.empty()) {
    prepared_ = false;
    throw Error(ErrorKind::kPrecondition, "SIRTAKI_GPU_OPERATIONS=nccl is not possible: " + agreement.refusal);
  }
  if (!agreement.why_not.empty() && transport_.rank() == 0) {
    options_.log(std::string("GPU tensors are sent ") + (agreement.mpi ? "by MPI" : "through host memory") +
                 ", not by NCCL: " + agreement.why_not);
  }
  if (agreement.mpi && (!agreement.nccl || options_.levels != nullptr)) {
    mpi_ = std::make_unique<MpiGpuCollectives>(*options_.mpi, *device_, stream_, agreement.kernels);
  }
  if (agreement.nccl) co_await connect(library, own, agreement);
}

std::string_view GpuPlane::way() const {
  if (nccl_ != nullptr) return "nccl";
  if (hierarchical_ != nullptr) return "hierarchical";
  return mpi_ != nullptr ? "gpu-mpi" : "gpu-host";
}

// With two levels NCCL never works between hosts, where it may have no network.
Task GpuPlane::connect(std::shared_ptr<const NcclLibrary> library, const GpuCard& own,
                       const GpuCapabilities& agreement) {
  if (options_.levels == nullptr) {
    const NcclMembers members{transport_.rank(), transport_.size(), agreement.id, agreement.kernels};
    nccl_ = std::make_unique<NcclCollectives>(library, *device_, stream_, members);
    co_await nccl_->connect();
    co_return;
  }
  Transport& host = *options_.levels->host;
  GpuCapabilities in_host;
  const NcclUniqueId id = host.rank() == 0 ? own_id(*library) : NcclUniqueId{};
  co_await exchange_cards(host, own, options_.operations, id, in_host);
  const NcclMembers members{host.rank(), host.size(), in_host.id, agreement.kernels};
  hierarchical_ =
      std::make_unique<HierarchicalNccl>(library, *device_, stream_, *options_.levels, members, agreement.mpi);
  co_await hierarchical_->connect();
}

NcclUniqueId GpuPlane::own_id(const NcclLibrary& library) {
  NcclUniqueId id{};
  device_->with_context([&] { library.check(library.calls.GetUniqueId(&id), "ncclGetUniqueId"); });
  return id;
}

StagedCollectives& GpuPlane::staged() {
  if (staged_ == nullptr) {
    staged_ = std::make_unique<StagedCollectives>(*device_, stream_, transport_.rank(), host_planes_);
  }
  return *staged_;
}

bool GpuPlane::watch() {
  const bool unfinished = last_ != nullptr && !last_->reached();
  if (nccl_ != nullptr) nccl_->check_queued();
  if (hierarchical_ != nullptr) hierarchical_->check_queued();
  // NCCL does not notice a dead process on this host: its kernel polls the peer's memory for ever.
  const int dead = unfinished && options_.dead_rank ? options_.dead_rank() : -1;
  if (dead >= 0) {
    throw Error(ErrorKind::kAborted,
                "the process of rank " + std::to_string(dead) + " has died, and collectives on GPUs wait for it");
  }
  return unfinished;
}

void GpuPlane::abort_nccl() {
  if (nccl_ != nullptr) nccl_->abort();
  if (hierarchical_ != nullptr) hierarchical_->abort();
}

void GpuPlane::abort() {
  aborted_ = true;
  try {
    abort_nccl();
  } catch (const Error&) {
    // The GPU itself has failed; that error is the job's cause already.
  }
}

}  // namespace

std::unique_ptr<DataPlane> make_gpu_plane(Transport& transport, std::vector<DataPlane*> host_planes,
                                          GpuOptions options) {
  return std::make_unique<GpuPlane>(transport, std::move(host_planes), std::move(options));
}

}  // namespace sirtaki
