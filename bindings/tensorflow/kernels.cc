#include "kernels.h"

#include <atomic>
#include <bit>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "call.h"

namespace sirtaki::tensorflow {
namespace {

std::atomic<const SirtakiApi*>& core_slot() {
  static std::atomic<const SirtakiApi*> slot{nullptr};
  return slot;
}

// Reads attributes and keeps the first error.
class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  std::int64_t integer(const char* name) {
    std::int64_t value = 0;
    if (status_.ok()) api().get_attr_int64(construction_, name, &value, status_.get());
    return value;
  }

  // TensorFlow's float attributes have 32 bits, too few for the factors of a float64 tensor.
  double real(const char* name) { return std::bit_cast<double>(integer(name)); }

  std::string text(const char* name) {
    std::int32_t count = 0;
    std::int32_t size = 0;
    if (status_.ok()) api().get_attr_size(construction_, name, &count, &size, status_.get());
    std::string value(static_cast<std::size_t>(size), '\0');
    if (status_.ok() && size > 0) api().get_attr_string(construction_, name, value.data(), value.size(), status_.get());
    return value;
  }

  // The kernel; or null after an error, and TensorFlow then refuses the op.
  void* give(std::unique_ptr<Kernel> kernel) {
    if (status_.ok()) return kernel.release();
    api().construction_failure(construction_, status_.get());
    return nullptr;
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

template <SirtakiVerb verb>
constexpr const char* kPrefix = "";
template <>
constexpr const char* kPrefix<kSirtakiAllreduce> = "allreduce";
template <>
constexpr const char* kPrefix<kSirtakiAllgather> = "allgather";
template <>
constexpr const char* kPrefix<kSirtakiBroadcast> = "broadcast";
template <>
constexpr const char* kPrefix<kSirtakiAlltoall> = "alltoall";
template <>
constexpr const char* kPrefix<kSirtakiReducescatter> = "reducescatter";
template <>
constexpr const char* kPrefix<kSirtakiBarrier> = "barrier";

template <SirtakiVerb verb, bool on_gpu>
void* create(TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  auto kernel = std::make_unique<Kernel>();
  kernel->verb = verb;
  kernel->on_gpu = on_gpu;
  kernel->prefix = kPrefix<verb>;
  kernel->site = attributes.text("site");
  kernel->eager = attributes.integer("eager") != 0;
  if constexpr (verb != kSirtakiJoin) kernel->process_set = attributes.integer("process_set");
  if constexpr (verb == kSirtakiBroadcast) kernel->root = attributes.integer("root_rank");
  if constexpr (verb == kSirtakiAllreduce || verb == kSirtakiReducescatter) {
    kernel->reduce_op = attributes.integer("reduce_op");
    kernel->prescale = attributes.real("prescale_bits");
    kernel->postscale = attributes.real("postscale_bits");
  }
  return attributes.give(std::move(kernel));
}

void* create_question(TF_OpKernelConstruction* construction) {
  Attributes attributes(construction);
  auto kernel = std::make_unique<Kernel>();
  kernel->question = attributes.integer("question");
  kernel->process_set = attributes.integer("process_set");
  return attributes.give(std::move(kernel));
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  start_call(*static_cast<const Kernel*>(kernel), context, done);
}

void give_scalar(TF_OpKernelContext* context, std::int64_t value) {
  const Status status;
  TF_Tensor* const output =
      api().allocate_output(context, 0, TfType::kInt32, nullptr, 0, sizeof(std::int32_t), status.get());
  if (status.ok() && output != nullptr) {
    *static_cast<std::int32_t*>(api().tensor_data(output)) = static_cast<std::int32_t>(value);
    api().delete_tensor(output);
  } else {
    api().context_failure(context, status.get());
  }
}

void answer(void* context, const SirtakiOutcome* outcome) {
  auto* const target = static_cast<TF_OpKernelContext*>(context);
  if (outcome->error == kSirtakiOk) {
    give_scalar(target, outcome->value);
  } else {
    fail(target, *outcome);
  }
}

void compute_answer(void* opaque, TF_OpKernelContext* context) {
  if (core_table() == nullptr) {
    fail_unconnected(context);
    return;
  }
  const auto& kernel = *static_cast<const Kernel*>(opaque);
  core_table()->ask(static_cast<std::int32_t>(kernel.question), static_cast<std::int32_t>(kernel.process_set), context,
                    &answer);
}

void add(const char* op, TF_KernelBuilder* builder) {
  const Status status;
  api().register_kernel_builder(op, builder, status.get());
  if (!status.ok()) throw std::runtime_error(std::string(op) + ": " + api().message(status.get()));
}

template <SirtakiVerb verb>
void add_collective(const char* op) {
  add(op, api().new_async_kernel_builder(op, "CPU", &create<verb, false>, &compute, &destroy));
}

// `on_host`: inputs and outputs that stay in host memory, such as labels.
template <SirtakiVerb verb>
void add_gpu_collective(const char* op, std::initializer_list<const char*> on_host) {
  TF_KernelBuilder* const builder = api().new_async_kernel_builder(op, "GPU", &create<verb, true>, &compute, &destroy);
  for (const char* argument : on_host) api().host_memory(builder, argument);
  add(op, builder);
}

// Not yet tested with TensorFlow on a GPU, so registered only on request.
void register_gpu_kernels() {
  const char* const wish = std::getenv("SIRTAKI_TENSORFLOW_GPU");
  if (wish == nullptr || std::string_view(wish) != "1") return;
  add_gpu_collective<kSirtakiAllreduce>("SirtakiAllreduce", {"label"});
  add_gpu_collective<kSirtakiAllgather>("SirtakiAllgather", {"label"});
  add_gpu_collective<kSirtakiBroadcast>("SirtakiBroadcast", {"label"});
  add_gpu_collective<kSirtakiAlltoall>("SirtakiAlltoall", {"splits", "label", "received_splits"});
  add_gpu_collective<kSirtakiReducescatter>("SirtakiReducescatter", {"label"});
}

}  // namespace

const SirtakiApi* core_table() { return core_slot().load(std::memory_order_acquire); }

void connect_core(const SirtakiApi* table) { core_slot().store(table, std::memory_order_release); }

void register_kernels() {
  add_collective<kSirtakiAllreduce>("SirtakiAllreduce");
  add_collective<kSirtakiAllgather>("SirtakiAllgather");
  add_collective<kSirtakiBroadcast>("SirtakiBroadcast");
  add_collective<kSirtakiAlltoall>("SirtakiAlltoall");
  add_collective<kSirtakiReducescatter>("SirtakiReducescatter");
  add_collective<kSirtakiBarrier>("SirtakiBarrier");
  add_collective<kSirtakiJoin>("SirtakiJoin");
  add("SirtakiTopology",
      api().new_kernel_builder("SirtakiTopology", "CPU", &create_question, &compute_answer, &destroy));
  register_gpu_kernels();
}

}  // namespace sirtaki::tensorflow
