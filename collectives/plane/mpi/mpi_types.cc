#include "plane/mpi/mpi_types.h"

#include <limits>
#include <string>

#include "base/error.h"

namespace sirtaki {

MpiType mpi_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
      return MpiType::kUint8;
    case DType::kInt8:
      return MpiType::kInt8;
    case DType::kUint16:
      return MpiType::kUint16;
    case DType::kInt16:
      return MpiType::kInt16;
    case DType::kUint32:
      return MpiType::kUint32;
    case DType::kInt32:
      return MpiType::kInt32;
    case DType::kUint64:
      return MpiType::kUint64;
    case DType::kInt64:
      return MpiType::kInt64;
    case DType::kFloat32:
      return MpiType::kFloat;
    case DType::kFloat64:
      return MpiType::kDouble;
    case DType::kFloat16:
    case DType::kBfloat16:
      break;
  }
  throw Error(ErrorKind::kPrecondition, "MPI has no arithmetic for " + std::string(name_of(dtype)));
}

// On bool, whose bytes are 0 and 1, a sum is "or" and a product "and".
MpiOp mpi_op(const Reduction& reduction) {
  const bool on_bool = reduction.dtype == DType::kBool;
  switch (reduction.op) {
    case ReduceOp::kSum:
      return on_bool ? MpiOp::kMax : MpiOp::kSum;
    case ReduceOp::kProduct:
      return on_bool ? MpiOp::kMin : MpiOp::kProduct;
    case ReduceOp::kMin:
      return MpiOp::kMin;
    case ReduceOp::kMax:
      return MpiOp::kMax;
    default:
      throw Error(ErrorKind::kPrecondition, "MPI has no operation " + std::string(name_of(reduction.op)));
  }
}

int to_mpi_count(std::int64_t count) {
  if (count <= std::numeric_limits<int>::max()) return static_cast<int>(count);
  throw Error(ErrorKind::kPrecondition, std::to_string(count) + " elements are more than MPI's int counts can express");
}

MpiUnit mpi_unit(std::size_t element_size) {
  if (element_size == 2) return {MpiType::kUint16, 1};
  if (element_size == 4) return {MpiType::kUint32, 1};
  if (element_size == 8) return {MpiType::kUint64, 1};
  return {MpiType::kUint8, static_cast<std::int64_t>(element_size)};
}

MpiLayout::MpiLayout(const std::vector<std::int64_t>& elements, std::int64_t per_element) {
  std::int64_t begin = 0;
  for (const std::int64_t each : elements) {
    counts.push_back(to_mpi_count(each * per_element));
    displacements.push_back(to_mpi_count(begin));
    begin += each * per_element;
  }
}

}  // namespace sirtaki
