#include "call.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "done.h"

namespace sirtaki::tensorflow {
namespace {

// A failed job is an UNKNOWN error, as in Horovod. TensorFlow's sessions would retry the step after an ABORTED error.
Code code_of(std::int32_t error) {
  switch (error) {
    case kSirtakiInvalidArgument:
      return Code::kInvalidArgument;
    case kSirtakiPrecondition:
      return Code::kFailedPrecondition;
    default:
      return Code::kUnknown;
  }
}

constexpr int kHost = -1;
constexpr std::int64_t kWholeResult = -1;
constexpr std::int64_t kSmall = 32 << 10;

struct Element {
  TfType type;
  std::size_t size;
};

// In the order of the core's dtype numbers (collectives/base/types.h), which never change.
constexpr std::array kElements{
    Element{TfType::kBool, 1},   Element{TfType::kUint8, 1},    Element{TfType::kInt8, 1},
    Element{TfType::kUint16, 2}, Element{TfType::kInt16, 2},    Element{TfType::kUint32, 4},
    Element{TfType::kInt32, 4},  Element{TfType::kUint64, 8},   Element{TfType::kInt64, 8},
    Element{TfType::kHalf, 2},   Element{TfType::kBfloat16, 2}, Element{TfType::kFloat, 4},
    Element{TfType::kDouble, 8},
};

// -1 for a type unknown to the core; the ops' definitions exclude these.
std::int32_t core_dtype(TfType type) {
  const auto found = std::find_if(kElements.begin(), kElements.end(), [&](const Element& e) { return e.type == type; });
  return found == kElements.end() ? -1 : static_cast<std::int32_t>(found - kElements.begin());
}

std::int64_t size_of(const SirtakiTensor& tensor) {
  auto bytes = static_cast<std::int64_t>(kElements[static_cast<std::size_t>(tensor.dtype)].size);
  for (int d = 0; d < tensor.dimensions; ++d) bytes *= tensor.shape[d];
  return bytes;
}

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { api().delete_tensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

// One run of an asynchronous kernel, from compute to done.
class Call {
 public:
  Call(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
      : kernel_(kernel), context_(context), done_(done) {}

  bool read_inputs();
  // The engine may finish, and so delete this object, before submit() returns.
  void submit();
  void end() { done_(); }

 private:
  bool read_tensor(int index);
  bool read_splits(int index);
  bool read_label(int index);
  bool prepare_output(int index);
  TensorPtr input(int index);
  int device() const { return kernel_.on_gpu ? api().get_device_id(context_) : kHost; }
  std::int32_t patience() const;
  void* allocate(std::int32_t tensor, std::int32_t dimensions, const std::int64_t* shape);
  void finish(const SirtakiOutcome& outcome);
  void set_extra_outputs(const SirtakiOutcome& outcome);
  void write_int32(int output, const std::int64_t* values, int count, bool scalar);

  const Kernel& kernel_;
  TF_OpKernelContext* context_;
  Done done_;
  Status status_;
  std::string name_;
  std::vector<std::int64_t> splits_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<TfType> types_;
  std::vector<SirtakiTensor> tensors_;
  std::vector<TensorPtr> held_;                      // inputs and outputs in use by the engine
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // memory for outputs that TensorFlow could not allocate
};

TensorPtr Call::input(int index) {
  TF_Tensor* tensor = nullptr;
  api().get_input(context_, index, &tensor, status_.get());
  return TensorPtr(tensor);
}

// The tensors come first, then an alltoall's splits, then the label.
bool Call::read_inputs() {
  const int label = api().num_inputs(context_) - 1;
  const int tensors = kernel_.verb == kSirtakiAlltoall ? label - 1 : label;
  bool good = true;
  for (int i = 0; good && i < tensors; ++i) good = read_tensor(i);
  for (int i = 0; good && i < tensors; ++i) good = prepare_output(i);
  if (good && kernel_.verb == kSirtakiAlltoall) good = read_splits(tensors);
  if (good) good = read_label(label);
  if (!good) api().context_failure(context_, status_.get());
  return good;
}

bool Call::read_tensor(int index) {
  const TensorPtr tensor = input(index);
  if (tensor == nullptr) return false;
  std::vector<std::int64_t>& shape = shapes_.emplace_back();
  for (int d = 0; d < api().num_dims(tensor.get()); ++d) shape.push_back(api().dim(tensor.get(), d));
  types_.push_back(api().tensor_type(tensor.get()));
  return true;
}

// Take the reference to the input afterwards: with it, TensorFlow could not reuse the input's memory for the output.
bool Call::prepare_output(int index) {
  const auto i = static_cast<std::size_t>(index);
  std::vector<std::int64_t>& shape = shapes_[i];
  const int dimensions = static_cast<int>(shape.size());
  void* out = nullptr;
  if (kernel_.verb == kSirtakiAllreduce || kernel_.verb == kSirtakiBroadcast) {
    int forwarded = -1;
    TensorPtr output(api().forward_input_or_allocate_output(context_, &index, 1, index, shape.data(), dimensions,
                                                            &forwarded, status_.get()));
    if (!status_.ok() || output == nullptr) return false;
    out = api().tensor_data(output.get());
    held_.push_back(std::move(output));
    if (forwarded >= 0) {
      tensors_.push_back({out, out, core_dtype(types_[i]), device(), dimensions, shape.data(), kWholeResult});
      return true;
    }
  }
  TensorPtr tensor = input(index);
  if (tensor == nullptr) return false;
  const void* in = api().tensor_data(tensor.get());
  tensors_.push_back({in, out, core_dtype(types_[i]), device(), dimensions, shape.data(), kWholeResult});
  held_.push_back(std::move(tensor));
  return true;
}

bool Call::read_splits(int index) {
  const TensorPtr tensor = input(index);
  if (tensor == nullptr) return false;
  if (api().num_dims(tensor.get()) != 1) {
    const auto dimensions = std::to_string(api().num_dims(tensor.get()));
    status_.set(Code::kInvalidArgument, "alltoall: splits must have one dimension, got " + dimensions);
    return false;
  }
  const auto* values = static_cast<const std::int32_t*>(api().tensor_data(tensor.get()));
  splits_.assign(values, values + api().dim(tensor.get(), 0));
  return true;
}

bool Call::read_label(int index) {
  const TensorPtr tensor = input(index);
  if (tensor == nullptr) return false;
  const std::string label(static_cast<const char*>(api().tensor_data(tensor.get())),
                          api().tensor_byte_size(tensor.get()));
  if (!label.empty()) name_ = std::string(kernel_.prefix) + "." + label;
  return true;
}

void Call::submit() {
  SirtakiRequest request{};
  request.verb = static_cast<std::int32_t>(kernel_.verb);
  request.name = name_.c_str();
  request.op = static_cast<std::int32_t>(kernel_.reduce_op);
  request.prescale = kernel_.prescale;
  request.postscale = kernel_.postscale;
  request.root = static_cast<std::int32_t>(kernel_.root);
  request.process_set = static_cast<std::int32_t>(kernel_.process_set);
  request.tensors = tensors_.data();
  request.tensor_count = static_cast<std::int32_t>(tensors_.size());
  request.splits = splits_.data();
  request.split_count = static_cast<std::int32_t>(splits_.size());
  request.site = kernel_.site.c_str();
  request.patience = patience();
  request.context = this;
  request.allocate = [](void* call, std::int32_t tensor, std::int32_t dimensions, const std::int64_t* shape) {
    return static_cast<Call*>(call)->allocate(tensor, dimensions, shape);
  };
  request.finished = [](void* call, const SirtakiOutcome* outcome) { static_cast<Call*>(call)->finish(*outcome); };
  core_table()->submit(&request);
}

// A thread of TensorFlow's pool does one round of engine work for a small collective, which often ends in it. That
// saves two thread switches, and a graph that has just reached this op rarely needs the thread for other work.
std::int32_t Call::patience() const {
  if (kernel_.eager) return kSirtakiWait;
  std::int64_t bytes = 0;
  for (const SirtakiTensor& tensor : tensors_) bytes += size_of(tensor);
  return bytes <= kSmall && !kernel_.on_gpu ? kSirtakiAdvance : kSirtakiReturn;
}

// The other ranks are in this collective already. If TensorFlow has no memory, it completes in our own memory.
void* Call::allocate(std::int32_t tensor, std::int32_t dimensions, const std::int64_t* shape) {
  const TfType type = types_[static_cast<std::size_t>(tensor)];
  std::size_t bytes = kElements[static_cast<std::size_t>(core_dtype(type))].size;
  for (int d = 0; d < dimensions; ++d) bytes *= static_cast<std::size_t>(shape[d]);
  TensorPtr output(api().allocate_output(context_, tensor, type, shape, dimensions, bytes, status_.get()));
  if (status_.ok() && output != nullptr) {
    void* const data = api().tensor_data(output.get());
    held_.push_back(std::move(output));
    if (data != nullptr || bytes == 0) return data;
  }
  if (kernel_.on_gpu) return nullptr;  // the core then ends the job: out of memory
  return spare_.emplace_back(std::make_unique<std::byte[]>(bytes + 1)).get();
}

void Call::finish(const SirtakiOutcome& outcome) {
  std::unique_ptr<Call> self(this);
  const bool abandoned = outcome.abandoned != 0;
  if (outcome.error != kSirtakiOk) {
    fail(context_, outcome);
  } else {
    set_extra_outputs(outcome);
    if (!status_.ok()) api().context_failure(context_, status_.get());
  }
  if (!abandoned) held_.clear();  // before later ops check whether they may reuse this memory
  done_();
  if (abandoned) static_cast<void>(self.release());  // never freed: a library may still write to its memory
}

void Call::set_extra_outputs(const SirtakiOutcome& outcome) {
  if (kernel_.verb == kSirtakiJoin) write_int32(0, &outcome.value, 1, true);
  if (kernel_.verb == kSirtakiAlltoall) write_int32(1, outcome.received_splits, outcome.received_split_count, false);
}

void Call::write_int32(int output, const std::int64_t* values, int count, bool scalar) {
  const std::int64_t length = count;
  const TensorPtr tensor(api().allocate_output(context_, output, TfType::kInt32, &length, scalar ? 0 : 1,
                                               sizeof(std::int32_t) * static_cast<std::size_t>(count), status_.get()));
  if (!status_.ok() || tensor == nullptr) return;
  auto* const data = static_cast<std::int32_t*>(api().tensor_data(tensor.get()));
  for (int i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>(values[i]);
}

}  // namespace

void start_call(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto call = std::make_unique<Call>(kernel, context, done);
  if (core_table() == nullptr) {
    fail_unconnected(context);
    call->end();
  } else if (call->read_inputs()) {
    call.release()->submit();  // finish() takes ownership again
  } else {
    call->end();
  }
}

void fail_unconnected(TF_OpKernelContext* context) {
  fail(context, {kSirtakiPrecondition, "import sirtaki.tensorflow before its ops run", 0, nullptr, 0, 0});
}

void fail(TF_OpKernelContext* context, const SirtakiOutcome& outcome) {
  const Status status;
  status.set(code_of(outcome.error), outcome.message);
  api().context_failure(context, status.get());
}

}  // namespace sirtaki::tensorflow
