#include "fake_nccl.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "math/half.h"
#include "math/kernels.h"

namespace sirtaki::contract {
namespace {

using Memory = std::vector<std::byte>;

constexpr int kRemoteError = 6;
constexpr int kInvalidUsage = 5;
constexpr int kFirstOwnOp = 100;

constexpr std::array<DType, 10> kTypes = {DType::kInt8,    DType::kUint8,   DType::kInt32,   DType::kUint32,
                                          DType::kInt64,   DType::kUint64,  DType::kFloat16, DType::kFloat32,
                                          DType::kFloat64, DType::kBfloat16};

// What one rank brings to a collective; all but the addresses must be equal.
struct Call {
  std::string what;
  const void* in;
  void* out;
  std::size_t count;
  int type;
  ReduceOp op;
  double factor;
  int root;
};

// The ranks of one communicator.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int made = 0;       // communicators
  int connected = 0;  // of those
  bool aborted = false;
  std::map<std::uint64_t, std::map<int, Call>> calls;  // by number of the collective, by rank
  std::map<std::uint64_t, std::map<int, Memory>> inputs;
  std::map<std::uint64_t, int> left;
  std::map<std::pair<int, int>, std::deque<Memory>> mail;  // by sender and receiver
};

struct Comm {
  std::shared_ptr<World> world;
  FakeDevice* device = nullptr;
  int rank = 0;
  std::uint64_t collectives = 0;
  bool connected = false;
  std::map<int, double> factors;  // of own operations
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
std::vector<std::unique_ptr<Comm>> comms;  // kept to the end: calls that are still queued refer to them
std::set<FakeDevice*> broken;
int ids = 0;
thread_local bool in_group = false;
thread_local std::vector<std::pair<Comm*, std::function<void()>>> grouped;

Comm& comm_of(NcclComm comm) { return *static_cast<Comm*>(comm); }
DType type_of(int type) { return kTypes.at(static_cast<std::size_t>(type)); }
std::size_t bytes_of(const Call& call) { return call.count * size_of(type_of(call.type)); }

ReduceOp op_of(int op) {
  constexpr std::array<ReduceOp, 4> kOps = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin};
  return op >= kFirstOwnOp ? ReduceOp::kSum : kOps.at(static_cast<std::size_t>(op));
}

Memory reduced(const std::map<int, Memory>& inputs, const Call& call, std::size_t offset, std::size_t count) {
  const DType dtype = type_of(call.type);
  Memory result(count * size_of(dtype));
  Memory scaled(result.size());
  bool first = true;
  for (const auto& [rank, input] : inputs) {
    std::byte* place = first ? result.data() : scaled.data();
    convert(dtype, place, dtype, input.data() + offset * size_of(dtype), static_cast<std::int64_t>(count), call.factor);
    if (!first) reduce(dtype, call.op, result.data(), scaled.data(), static_cast<std::int64_t>(count));
    first = false;
  }
  return result;
}

// On the stream's thread: waits for all ranks, and for ever if they call something else.
void meet(Comm& comm, std::uint64_t number, const Call& call, std::size_t in_bytes,
          const std::function<void(const std::map<int, Memory>&)>& finish) {
  World& world = *comm.world;
  std::unique_lock lock(world.mutex);
  const auto* bytes = static_cast<const std::byte*>(call.in);
  world.calls[number].emplace(comm.rank, call);
  world.inputs[number].emplace(comm.rank, Memory(bytes, bytes + in_bytes));
  world.changed.notify_all();
  const auto complete = [&] {
    if (world.calls[number].size() < static_cast<std::size_t>(world.size)) return false;
    for (const auto& [rank, other] : world.calls[number]) {
      if (other.what != call.what || other.count != call.count || other.type != call.type || other.op != call.op ||
          other.root != call.root || other.factor != call.factor) {
        return false;
      }
    }
    return true;
  };
  world.changed.wait(lock, [&] { return world.aborted || complete(); });
  if (world.aborted) return;
  finish(world.inputs[number]);
  if (++world.left[number] == world.size) {
    world.inputs.erase(number);
    world.left.erase(number);
  }
}

int enqueue(NcclComm handle, std::function<void()> body) {
  if (!in_group) return kInvalidUsage;  // the plane never calls outside a group
  grouped.emplace_back(&comm_of(handle), std::move(body));
  return kNcclSuccess;
}

int collective(NcclComm handle, Call call, std::size_t in_bytes, Stream stream,
               std::function<void(const Comm&, const Call&, const std::map<int, Memory>&)> finish) {
  Comm& comm = comm_of(handle);
  const std::uint64_t number = comm.collectives++;
  return enqueue(handle, [&comm, number, call = std::move(call), in_bytes, stream, finish = std::move(finish)] {
    comm.device->call(stream, [&comm, number, call, in_bytes, finish] {
      meet(comm, number, call, in_bytes, [&](const auto& inputs) { finish(comm, call, inputs); });
    });
  });
}

void copy(void* out, const Memory& bytes) {
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
}

double factor_of(NcclComm comm, int op) { return op >= kFirstOwnOp ? comm_of(comm).factors.at(op) : 1.0; }

int get_version(int* version) {
  *version = 29900;
  return kNcclSuccess;
}
const char* get_error_string(int result) { return result == kRemoteError ? "remote process exited" : "invalid usage"; }
const char* get_last_error(NcclComm) { return ""; }

int get_unique_id(NcclUniqueId* id) {
  const std::lock_guard lock(worlds_mutex);
  std::snprintf(id->bytes, sizeof(id->bytes), "world %d", ++ids);
  return kNcclSuccess;
}

// As the real one, for all ranks.
void meet(World& world, int World::* count) {
  std::unique_lock lock(world.mutex);
  ++(world.*count);
  world.changed.notify_all();
  world.changed.wait(lock, [&] { return world.aborted || world.*count >= world.size; });
}

int comm_init(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  if (config->blocking != 1 || config->magic != 0xcafebeef || config->size != sizeof(NcclConfig)) return kInvalidUsage;
  std::shared_ptr<World> world;
  Comm* made = nullptr;
  {
    const std::lock_guard lock(worlds_mutex);
    std::shared_ptr<World>& known = worlds[id.bytes];
    if (known == nullptr) {
      known = std::make_shared<World>();
      known->size = size;
    }
    world = known;
    made = comms.emplace_back(std::make_unique<Comm>()).get();
  }
  made->world = world;
  made->device = FakeDevice::current();
  made->rank = rank;
  *comm = made;
  meet(*world, &World::made);
  return kNcclSuccess;
}

int get_async_error(NcclComm handle, int* state) {
  const std::lock_guard lock(worlds_mutex);
  *state = broken.contains(comm_of(handle).device) ? kRemoteError : kNcclSuccess;
  return kNcclSuccess;
}

int nothing(NcclComm) { return kNcclSuccess; }

int comm_abort(NcclComm handle) {
  World& world = *comm_of(handle).world;
  const std::lock_guard lock(world.mutex);
  world.aborted = true;
  world.changed.notify_all();
  return kNcclSuccess;
}

int create_scaled_sum(int* op, void* scalar, int type, int residence, NcclComm handle) {
  Comm& comm = comm_of(handle);
  double factor = 0;
  convert(DType::kFloat64, &factor, type_of(type), scalar, 1, 1.0);
  if (residence != kNcclScalarHost) return kInvalidUsage;
  *op = kFirstOwnOp + static_cast<int>(comm.factors.size());
  comm.factors[*op] = factor;
  return kNcclSuccess;
}
int destroy_op(int, NcclComm) { return kNcclSuccess; }

int group_start() {
  if (in_group) return kInvalidUsage;
  in_group = true;
  return kNcclSuccess;
}

// A communicator connects in its first group, for which it has to meet the other ranks.
int group_end() {
  in_group = false;
  for (auto& [comm, body] : grouped) {
    if (!std::exchange(comm->connected, true)) meet(*comm->world, &World::connected);
    body();
  }
  grouped.clear();
  return kNcclSuccess;
}

int all_reduce(const void* in, void* out, std::size_t count, int type, int op, NcclComm comm, Stream stream) {
  const Call call{"allreduce", in, out, count, type, op_of(op), factor_of(comm, op), 0};
  return collective(comm, call, bytes_of(call), stream, [](const Comm&, const Call& c, const auto& inputs) {
    copy(c.out, reduced(inputs, c, 0, c.count));
  });
}

int reduce_to_root(const void* in, void* out, std::size_t count, int type, int op, int root, NcclComm comm,
                   Stream stream) {
  const Call call{"reduce", in, out, count, type, op_of(op), factor_of(comm, op), root};
  return collective(comm, call, bytes_of(call), stream, [](const Comm& own, const Call& c, const auto& inputs) {
    if (own.rank == c.root) copy(c.out, reduced(inputs, c, 0, c.count));
  });
}

int reduce_scatter(const void* in, void* out, std::size_t count, int type, int op, NcclComm comm, Stream stream) {
  const Call call{"reducescatter", in, out, count, type, op_of(op), factor_of(comm, op), 0};
  const std::size_t all = bytes_of(call) * static_cast<std::size_t>(comm_of(comm).world->size);
  return collective(comm, call, all, stream, [](const Comm& own, const Call& c, const auto& inputs) {
    copy(c.out, reduced(inputs, c, c.count * static_cast<std::size_t>(own.rank), c.count));
  });
}

int all_gather(const void* in, void* out, std::size_t count, int type, NcclComm comm, Stream stream) {
  const Call call{"allgather", in, out, count, type, ReduceOp::kSum, 1.0, 0};
  return collective(comm, call, bytes_of(call), stream, [](const Comm&, const Call& c, const auto& inputs) {
    for (const auto& [rank, bytes] : inputs) {
      copy(static_cast<std::byte*>(c.out) + static_cast<std::size_t>(rank) * bytes_of(c), bytes);
    }
  });
}

int broadcast(const void* in, void* out, std::size_t count, int type, int root, NcclComm comm, Stream stream) {
  const Call call{"broadcast", in, out, count, type, ReduceOp::kSum, 1.0, root};
  return collective(comm, call, bytes_of(call), stream,
                    [](const Comm&, const Call& c, const auto& inputs) { copy(c.out, inputs.at(c.root)); });
}

int send(const void* in, std::size_t count, int type, int peer, NcclComm handle, Stream stream) {
  Comm& comm = comm_of(handle);
  const std::size_t bytes = count * size_of(type_of(type));
  return enqueue(handle, [=, &comm] {
    comm.device->call(stream, [=, &comm] {
      const auto* begin = static_cast<const std::byte*>(in);
      const std::lock_guard lock(comm.world->mutex);
      comm.world->mail[{comm.rank, peer}].emplace_back(begin, begin + bytes);
      comm.world->changed.notify_all();
    });
  });
}

int receive(void* out, std::size_t, int, int peer, NcclComm handle, Stream stream) {
  Comm& comm = comm_of(handle);
  return enqueue(handle, [=, &comm] {
    comm.device->call(stream, [=, &comm] {
      World& world = *comm.world;
      std::unique_lock lock(world.mutex);
      auto& mail = world.mail[{peer, comm.rank}];
      world.changed.wait(lock, [&] { return world.aborted || !mail.empty(); });
      if (world.aborted) return;
      copy(out, mail.front());
      mail.pop_front();
    });
  });
}

}  // namespace

void mend_fake_nccl(FakeDevice& device) {
  const std::lock_guard lock(worlds_mutex);
  broken.erase(&device);
}

void break_fake_nccl(FakeDevice& device) {
  const std::lock_guard lock(worlds_mutex);
  broken.insert(&device);
}

std::shared_ptr<const NcclLibrary> fake_nccl(const std::string& version) {
  const NcclCalls calls{
      &get_version,    &get_error_string, &get_last_error,    &get_unique_id, &comm_init,   &nothing,   &nothing,
      &comm_abort,     &get_async_error,  &create_scaled_sum, &destroy_op,    &group_start, &group_end, &all_reduce,
      &reduce_to_root, &reduce_scatter,   &all_gather,        &broadcast,     &send,        &receive};
  return std::make_shared<const NcclLibrary>(NcclLibrary{"fake", version, calls});
}

}  // namespace sirtaki::contract
