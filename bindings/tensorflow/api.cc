#include "api.h"

#include <dlfcn.h>

namespace sirtaki::tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

struct Found {
  Api api{};
  std::string problem;
};

// Fills the table and records the names of missing functions.
class Lookup {
 public:
  Lookup(void* library, std::string& missing) : library_(library), missing_(missing) {}

  template <class Function>
  void operator()(Function*& slot, const char* name) {
    slot = reinterpret_cast<Function*>(dlsym(library_, name));
    if (slot == nullptr) missing_ += std::string(missing_.empty() ? "" : ", ") + name;
  }

 private:
  void* library_;
  std::string& missing_;
};

void look_up_values(Lookup& find, Api& api) {
  find(api.new_status, "TF_NewStatus");
  find(api.delete_status, "TF_DeleteStatus");
  find(api.set_status, "TF_SetStatus");
  find(api.get_code, "TF_GetCode");
  find(api.message, "TF_Message");
  find(api.delete_tensor, "TF_DeleteTensor");
  find(api.tensor_type, "TF_TensorType");
  find(api.num_dims, "TF_NumDims");
  find(api.dim, "TF_Dim");
  find(api.tensor_byte_size, "TF_TensorByteSize");
  find(api.tensor_data, "TF_TensorData");
}

void look_up_definitions(Lookup& find, Api& api) {
  find(api.new_op_definition_builder, "TF_NewOpDefinitionBuilder");
  find(api.add_attr, "TF_OpDefinitionBuilderAddAttr");
  find(api.add_input, "TF_OpDefinitionBuilderAddInput");
  find(api.add_output, "TF_OpDefinitionBuilderAddOutput");
  find(api.set_is_stateful, "TF_OpDefinitionBuilderSetIsStateful");
  find(api.set_shape_inference_function, "TF_OpDefinitionBuilderSetShapeInferenceFunction");
  find(api.register_op_definition, "TF_RegisterOpDefinition");
  find(api.shape_num_inputs, "TF_ShapeInferenceContextNumInputs");
  find(api.new_shape_handle, "TF_NewShapeHandle");
  find(api.delete_shape_handle, "TF_DeleteShapeHandle");
  find(api.shape_get_input, "TF_ShapeInferenceContextGetInput");
  find(api.shape_set_output, "TF_ShapeInferenceContextSetOutput");
  find(api.shape_scalar, "TF_ShapeInferenceContextScalar");
  find(api.shape_vector, "TF_ShapeInferenceContextVectorFromSize");
  find(api.shape_rank, "TF_ShapeInferenceContextRank");
  find(api.shape_rank_known, "TF_ShapeInferenceContextRankKnown");
  find(api.shape_subshape, "TF_ShapeInferenceContextSubshape");
  find(api.shape_concatenate, "TF_ShapeInferenceContextConcatenateShapes");
}

void look_up_kernels(Lookup& find, Api& api) {
  find(api.new_kernel_builder, "TF_NewKernelBuilder");
  find(api.new_async_kernel_builder, "TF_NewAsyncKernelBuilder");
  find(api.host_memory, "TF_KernelBuilder_HostMemory");
  find(api.get_device_id, "TF_GetDeviceId");
  find(api.register_kernel_builder, "TF_RegisterKernelBuilder");
  find(api.construction_failure, "TF_OpKernelConstruction_Failure");
  find(api.get_attr_size, "TF_OpKernelConstruction_GetAttrSize");
  find(api.get_attr_int64, "TF_OpKernelConstruction_GetAttrInt64");
  find(api.get_attr_string, "TF_OpKernelConstruction_GetAttrString");
  find(api.num_inputs, "TF_NumInputs");
  find(api.get_input, "TF_GetInput");
  find(api.allocate_output, "TF_AllocateOutput");
  find(api.forward_input_or_allocate_output, "TF_ForwardInputOrAllocateOutput");
  find(api.context_failure, "TF_OpKernelContext_Failure");
  find(api.run_done_callback, "TF_RunAsyncOpKernelDoneCallback");
}

// TensorFlow's symbols are loaded as local, so each is looked up by name. This code never loads TensorFlow.
Found look_up_all() {
  Found found;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    found.problem = std::string(kLibrary) + " is not loaded in this process; import tensorflow first";
    return found;
  }
  std::string missing;
  Lookup find(library, missing);
  look_up_values(find, found.api);
  look_up_definitions(find, found.api);
  look_up_kernels(find, found.api);
  if (!missing.empty()) found.problem = std::string(kLibrary) + " has no " + missing;
  return found;
}

const Found& found() {
  static const auto* const instance =
      new Found(look_up_all());  // never destroyed: kernels may run while the process ends
  return *instance;
}

}  // namespace

const Api& api() { return found().api; }

const std::string& problem() { return found().problem; }

}  // namespace sirtaki::tensorflow
