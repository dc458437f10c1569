// The part of TensorFlow's C API that the kernels use, declared here so that the build needs no TensorFlow. The
// functions are looked up in the TensorFlow that this process has loaded. The C API is stable, so one build works with
// all versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// TensorFlow's opaque types.
struct TF_AsyncOpKernelDoneCallback;
struct TF_DimensionHandle;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace sirtaki::tensorflow {

enum class Code : int { kOk = 0, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9, kInternal = 13 };

// TensorFlow's numbers for the core's dtypes.
enum class TfType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

// Each member is the C function with the same name and the prefix TF_.
struct Api {
  TF_Status* (*new_status)();
  void (*delete_status)(TF_Status*);
  void (*set_status)(TF_Status*, Code, const char* message);
  Code (*get_code)(const TF_Status*);
  const char* (*message)(const TF_Status*);

  void (*delete_tensor)(TF_Tensor*);
  TfType (*tensor_type)(const TF_Tensor*);
  int (*num_dims)(const TF_Tensor*);
  std::int64_t (*dim)(const TF_Tensor*, int index);
  std::size_t (*tensor_byte_size)(const TF_Tensor*);
  void* (*tensor_data)(const TF_Tensor*);

  TF_OpDefinitionBuilder* (*new_op_definition_builder)(const char* name);
  void (*add_attr)(TF_OpDefinitionBuilder*, const char* spec);
  void (*add_input)(TF_OpDefinitionBuilder*, const char* spec);
  void (*add_output)(TF_OpDefinitionBuilder*, const char* spec);
  void (*set_is_stateful)(TF_OpDefinitionBuilder*, bool);
  void (*set_shape_inference_function)(TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*));
  void (*register_op_definition)(TF_OpDefinitionBuilder*, TF_Status*);

  std::int64_t (*shape_num_inputs)(TF_ShapeInferenceContext*);
  TF_ShapeHandle* (*new_shape_handle)();
  void (*delete_shape_handle)(TF_ShapeHandle*);
  void (*shape_get_input)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
  void (*shape_set_output)(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
  TF_ShapeHandle* (*shape_scalar)(TF_ShapeInferenceContext*);
  TF_ShapeHandle* (*shape_vector)(TF_ShapeInferenceContext*, std::size_t size);
  std::int64_t (*shape_rank)(TF_ShapeInferenceContext*, TF_ShapeHandle*);
  int (*shape_rank_known)(TF_ShapeInferenceContext*, TF_ShapeHandle*);
  void (*shape_subshape)(TF_ShapeInferenceContext*, TF_ShapeHandle*, std::int64_t start, std::int64_t end,
                         TF_ShapeHandle* result, TF_Status*);
  void (*shape_concatenate)(TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle* result,
                            TF_Status*);

  TF_KernelBuilder* (*new_kernel_builder)(const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),
                                          void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*));
  TF_KernelBuilder* (*new_async_kernel_builder)(
      const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),
      void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*destroy)(void*));
  void (*host_memory)(TF_KernelBuilder*, const char* argument);
  int (*get_device_id)(TF_OpKernelContext*);
  void (*register_kernel_builder)(const char* name, TF_KernelBuilder*, TF_Status*);
  void (*construction_failure)(TF_OpKernelConstruction*, TF_Status*);
  void (*get_attr_size)(TF_OpKernelConstruction*, const char* attr, std::int32_t* list_size, std::int32_t* total_size,
                        TF_Status*);
  void (*get_attr_int64)(TF_OpKernelConstruction*, const char* attr, std::int64_t* value, TF_Status*);
  void (*get_attr_string)(TF_OpKernelConstruction*, const char* attr, char* value, std::size_t capacity, TF_Status*);

  int (*num_inputs)(TF_OpKernelContext*);
  void (*get_input)(TF_OpKernelContext*, int index, TF_Tensor**, TF_Status*);
  TF_Tensor* (*allocate_output)(TF_OpKernelContext*, int index, TfType, const std::int64_t* dims, int num_dims,
                                std::size_t bytes, TF_Status*);
  TF_Tensor* (*forward_input_or_allocate_output)(TF_OpKernelContext*, const int* candidates, int num_candidates,
                                                 int output, const std::int64_t* dims, int num_dims,
                                                 int* forwarded_input, TF_Status*);
  void (*context_failure)(TF_OpKernelContext*, TF_Status*);
  void (*run_done_callback)(TF_AsyncOpKernelDoneCallback*);
};

// Looked up once, when this library is loaded.
const Api& api();

// "" if all functions were found, otherwise a message with the missing names.
const std::string& problem();

// Owns a TF_Status.
class Status {
 public:
  Status() : status_(api().new_status()) {}
  ~Status() { api().delete_status(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return api().get_code(status_) == Code::kOk; }
  void set(Code code, const std::string& message) const { api().set_status(status_, code, message.c_str()); }

 private:
  TF_Status* status_;
};

}  // namespace sirtaki::tensorflow
