#include "plane/nccl/nccl_reduction.h"

#include <cmath>
#include <stdexcept>

#include "math/half.h"
#include "math/kernels.h"
#include "plane/reduction_steps.h"

namespace sirtaki {
namespace {

bool is_small_integer(DType dtype) { return dtype == DType::kInt16 || dtype == DType::kUint16; }

DType widened(DType dtype) {
  if (dtype == DType::kInt16) return DType::kInt32;
  return dtype == DType::kUint16 ? DType::kUint32 : dtype;
}

NcclOp plain(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return kNcclProd;
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    default:
      return kNcclSum;
  }
}

// On bytes that are 0 or 1.
NcclOp on_bool(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kMax ? kNcclMax : kNcclMin; }

// NCCL takes the factor as an element; 1/3 in bfloat16 would be off by a thousandth.
bool is_exact(DType dtype, double factor) {
  if (dtype == DType::kFloat16)
    return static_cast<double>(static_cast<float>(Float16(static_cast<float>(factor)))) == factor;
  if (dtype == DType::kBfloat16)
    return static_cast<double>(static_cast<float>(Bfloat16(static_cast<float>(factor)))) == factor;
  return true;
}

struct Factors {
  double before;
  Scale after;
};

// All that can be is done before: it costs nothing there. Of an average by a power of two, nothing is left for after.
Factors factors_of_sum(const Reduction& reduction) {
  const double factor = reduction.prescale * reduction.postscale;
  if (!reduction.averages()) return {factor, 1.0};
  if (std::abs(factor) > 1.0) {  // the average may be finite, and the result infinite
    const ReductionSteps steps = steps_of_library(reduction);
    return {steps.before, steps.after};
  }
  const auto power = static_cast<double>(halving(reduction));
  return {factor / power, power == static_cast<double>(reduction.divisor) ? Scale() : Scale(power, reduction.divisor)};
}

}  // namespace

NcclReduction nccl_reduction(const Reduction& reduction, std::optional<DType> wire) {
  NcclReduction result{.wire = reduction.dtype, .op = plain(reduction.op)};
  const auto [before, after] = factors_of_sum(reduction);
  if (wire && *wire != reduction.dtype) {
    result.wire = *wire;
    result.converts = true;
    result.before = before;
    result.after = after;
    return result;
  }
  const bool scaled = reduction.prescale != 1.0 || reduction.postscale != 1.0 || reduction.divisor != 1;
  if (reduction.dtype == DType::kBool) {
    result.op = on_bool(reduction.op);
    return result;
  }
  if (!scaled && !is_small_integer(reduction.dtype)) return result;
  if (reduction.op == ReduceOp::kSum && !is_integer(reduction.dtype)) {
    result.converts = !is_exact(reduction.dtype, before);
    (result.converts ? result.before : result.factor) = before;
    result.after = after;
    return result;
  }
  result.converts = true;
  result.wire = nccl_wire(reduction);
  result.before = reduction.prescale;
  result.after = {reduction.postscale, reduction.divisor};
  return result;
}

DType nccl_wire(const Reduction& reduction) { return widened(wire_dtype(reduction)); }

NcclType nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
      return kNcclUint8;
    case DType::kInt8:
      return kNcclInt8;
    case DType::kInt32:
      return kNcclInt32;
    case DType::kUint32:
      return kNcclUint32;
    case DType::kInt64:
      return kNcclInt64;
    case DType::kUint64:
      return kNcclUint64;
    case DType::kFloat16:
      return kNcclFloat16;
    case DType::kBfloat16:
      return kNcclBfloat16;
    case DType::kFloat32:
      return kNcclFloat32;
    case DType::kFloat64:
      return kNcclFloat64;
    default:
      throw std::logic_error("NCCL has no " + std::string(name_of(dtype)));
  }
}

}  // namespace sirtaki
