#include "ops.h"

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "api.h"

namespace sirtaki::tensorflow {
namespace {

constexpr const char* kTensorTypes =
    "T: list({bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}) >= 1";
constexpr const char* kTensorType =
    "T: {bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}";
constexpr const char* kProcessSet = "process_set: int = 0";
constexpr const char* kReduceOp = "reduce_op: int = 1";
constexpr const char* kRoot = "root_rank: int";
constexpr const char* kSite = "site: string = ''";
constexpr const char* kEager = "eager: int = 0";
// The bits of a double; the default is 1.0.
constexpr const char* kPrescale = "prescale_bits: int = 4607182418800017408";
constexpr const char* kPostscale = "postscale_bits: int = 4607182418800017408";
// The request's name as UTF-8; if empty, the core numbers the request. It is an input, since TensorFlow keeps one
// kernel for ever for each value of an eager op's attribute.
constexpr const char* kLabel = "label: uint8";

constexpr auto kUnknownSize = static_cast<std::size_t>(-1);

class Shape {
 public:
  Shape() : handle_(api().new_shape_handle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { api().delete_shape_handle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  TF_ShapeHandle* get() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// Outputs have the shapes of the inputs. The label is the last input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int count = static_cast<int>(api().shape_num_inputs(context)) - 1;
  for (int i = 0; i < count; ++i) {
    const Shape shape;
    api().shape_get_input(context, i, shape.get(), status);
    if (api().get_code(status) == Code::kOk) api().shape_set_output(context, i, shape.get(), status);
  }
}

// The output has the input's shape except the number of rows. The op refuses scalars when it runs.
void other_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const Shape shape;
  api().shape_get_input(context, index, shape.get(), status);
  if (api().get_code(status) != Code::kOk || !api().shape_rank_known(context, shape.get())) return;
  const std::int64_t rank = api().shape_rank(context, shape.get());
  if (rank == 0) return;
  const Shape rows(api().shape_vector(context, kUnknownSize));
  const Shape row;
  const Shape result;
  api().shape_subshape(context, shape.get(), 1, rank, row.get(), status);
  if (api().get_code(status) == Code::kOk) {
    api().shape_concatenate(context, rows.get(), row.get(), result.get(), status);
  }
  if (api().get_code(status) == Code::kOk) api().shape_set_output(context, index, result.get(), status);
}

void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int count = static_cast<int>(api().shape_num_inputs(context)) - 1;
  for (int i = 0; i < count && api().get_code(status) == Code::kOk; ++i) other_rows(context, i, status);
}

void alltoall_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows(context, 0, status);
  const Shape received(api().shape_vector(context, kUnknownSize));
  if (api().get_code(status) == Code::kOk) api().shape_set_output(context, 1, received.get(), status);
}

void one_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(api().shape_scalar(context));
  api().shape_set_output(context, 0, scalar.get(), status);
}

void no_output(TF_ShapeInferenceContext*, TF_Status*) {}

using Specs = std::initializer_list<const char*>;

void define(const char* name, Specs attributes, Specs inputs, Specs outputs, ShapeFunction shapes) {
  TF_OpDefinitionBuilder* const builder = api().new_op_definition_builder(name);
  for (const char* spec : attributes) api().add_attr(builder, spec);
  for (const char* spec : inputs) api().add_input(builder, spec);
  for (const char* spec : outputs) api().add_output(builder, spec);
  // Stateful: TensorFlow must not prune, repeat or merge this op, since other ranks wait for it.
  api().set_is_stateful(builder, true);
  api().set_shape_inference_function(builder, shapes);
  const Status status;
  api().register_op_definition(builder, status.get());
  if (!status.ok()) throw std::runtime_error(std::string(name) + ": " + api().message(status.get()));
}

}  // namespace

void register_ops() {
  const Specs reduction{kTensorTypes, kReduceOp, kPrescale, kPostscale, kProcessSet, kSite, kEager};
  define("SirtakiAllreduce", reduction, {"tensors: T", kLabel}, {"results: T"}, &same_shapes);
  define("SirtakiReducescatter", reduction, {"tensors: T", kLabel}, {"results: T"}, &all_other_rows);
  define("SirtakiAllgather", {kTensorTypes, kProcessSet, kSite, kEager}, {"tensors: T", kLabel}, {"results: T"},
         &all_other_rows);
  define("SirtakiBroadcast", {kTensorTypes, kRoot, kProcessSet, kSite, kEager}, {"tensors: T", kLabel}, {"results: T"},
         &same_shapes);
  define("SirtakiAlltoall", {kTensorType, kProcessSet, kSite, kEager}, {"tensor: T", "splits: int32", kLabel},
         {"result: T", "received_splits: int32"}, &alltoall_shapes);
  define("SirtakiBarrier", {kProcessSet, kSite, kEager}, {kLabel}, {}, &no_output);
  define("SirtakiJoin", {kSite, kEager}, {kLabel}, {"last_rank: int32"}, &one_scalar);
  define("SirtakiTopology", {"question: int", kProcessSet}, {}, {"answer: int32"}, &one_scalar);
}

}  // namespace sirtaki::tensorflow
