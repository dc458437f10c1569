#include "queue/request_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace sirtaki {
namespace {

bool reduces(const Request& request) {
  return request.verb == Verb::kAllreduce || request.verb == Verb::kReducescatter;
}

bool is_float(DType dtype) { return !is_integer(dtype) && dtype != DType::kBool; }

void check_scale(const Request& request, const char* what, double value) {
  if (!std::isfinite(value))
    refuse_request(request, std::string(what) + " is " + std::to_string(value) + ", which is not finite");
}

void check_reduction(const Request& request, int size) {
  check_scale(request, "prescale_factor", request.prescale);
  check_scale(request, "postscale_factor", request.postscale);
  for (const TensorSpec& tensor : request.tensors) {
    const std::string with = std::string(name_of(request.op)) + " of " + std::string(name_of(tensor.dtype));
    if (tensor.dtype == DType::kBool) {
      if (request.op == ReduceOp::kAverage)
        refuse_request(request, with + " has no meaning; use Sum, Min, Max or Product");
      if (request.prescale != 1 || request.postscale != 1) refuse_request(request, "bool cannot be scaled");
    }
    if (request.op == ReduceOp::kAdasum && !is_float(tensor.dtype))
      refuse_request(request, with + " needs a float dtype");
  }
  if (request.op == ReduceOp::kAdasum && request.verb == Verb::kAllreduce && (size & (size - 1)) != 0) {
    refuse_request(request, "Adasum needs a number of ranks that is a power of two, not " + std::to_string(size));
  }
}

void check_shape(const Request& request, const Shape& shape) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // times the element size, this still fits in 64 bits
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) {
    if (length < 0) refuse_request(request, "negative size in shape " + to_string(shape));
    const bool fits = !__builtin_mul_overflow(elements, std::max<std::int64_t>(length, 1), &elements);
    if (!fits || elements > kMostElements)
      refuse_request(request, "shape " + to_string(shape) + " has too many elements");
  }
}

void check_tensors(const Request& request) {
  const bool empty = request.verb == Verb::kBarrier || request.verb == Verb::kJoin ||
                     request.verb == Verb::kAddProcessSet || request.verb == Verb::kRemoveProcessSet;
  if (empty != request.tensors.empty()) {
    refuse_request(request, empty ? "takes no tensors" : "no tensors were given");
  }
  const bool has_rows = changes_shape(request.verb);
  for (const TensorSpec& tensor : request.tensors) {
    if (has_rows && tensor.shape.empty())
      refuse_request(request, "needs a tensor with at least one dimension, got a scalar");
    check_shape(request, tensor.shape);
    if (tensor.device != request.tensors[0].device) {
      throw Error(ErrorKind::kPrecondition, "'" + request.title() + "': tensors on " +
                                                name_of_device(request.tensors[0].device) + " and " +
                                                name_of_device(tensor.device) + " in one group");
    }
  }
}

void check_splits(const Request& request, int size) {
  if (request.tensors.size() != 1)
    refuse_request(request, "takes one tensor, got " + std::to_string(request.tensors.size()));
  const std::int64_t rows = request.tensors[0].shape[0];
  if (request.splits.empty()) {
    if (rows % size == 0) return;
    refuse_request(request, "no splits were given, and " + std::to_string(rows) +
                                " rows cannot be divided evenly among " + std::to_string(size) + " ranks");
  }
  if (request.splits.size() != static_cast<std::size_t>(size)) {
    refuse_request(request, "splits must have one entry for each of " + std::to_string(size) + " ranks, got " +
                                std::to_string(request.splits.size()));
  }
  std::int64_t left = rows;
  for (const std::int64_t split : request.splits) {
    if (split < 0) refuse_request(request, "splits contain the negative number " + std::to_string(split));
    if (split > left) {
      refuse_request(request, "splits " + to_string(request.splits) + " add up to more than the tensor's " +
                                  std::to_string(rows) + " rows");
    }
    left -= split;
  }
}

void check_point_to_point(const Request& request) {
  if (request.tensors.size() != 1)
    refuse_request(request, "takes one tensor, got " + std::to_string(request.tensors.size()));
  if (request.tensors[0].device != kHostDevice) {
    refuse_request(request, "the tensor is on " + name_of_device(request.tensors[0].device) +
                                ", but only host memory can be sent and received; copy it to the CPU first");
  }
  if (request.tag < 0) refuse_request(request, "the tag is negative");
}

struct Range {
  const std::byte* begin;
  const std::byte* end;
  std::size_t tensor;
};

// Of an output with the input number `input`.
void refuse_overlap(const Request& request, const Range& output, const std::vector<Address>& addresses,
                    std::size_t input) {
  const TensorSpec& spec = request.tensors[input];
  const auto* in = static_cast<const std::byte*>(addresses[input].in);
  const auto bytes = static_cast<std::size_t>(element_count(spec.shape)) * size_of(spec.dtype);
  if (bytes == 0 || in >= output.end || output.begin >= in + bytes) return;
  if (input == output.tensor) {
    refuse_request(request, "input and output of tensor " + std::to_string(input) + " overlap");
  }
  refuse_request(request, "the input of tensor " + std::to_string(input) + " and the output of tensor " +
                              std::to_string(output.tensor) + " overlap");
}

}  // namespace

void refuse_request(const Request& request, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, std::string(name_of(request.verb)) + " '" + request.title() + "': " + why);
}

void check_request(const Request& request, int size) {
  check_tensors(request);
  if (reduces(request)) check_reduction(request, size);
  if (request.verb == Verb::kReducescatter && request.op == ReduceOp::kAdasum) {
    throw Error(ErrorKind::kPrecondition, "reducescatter '" + request.title() + "': Adasum is not supported");
  }
  if (request.verb == Verb::kAlltoall) check_splits(request, size);
  if (is_point_to_point(request.verb)) check_point_to_point(request);
  if (request.verb == Verb::kBroadcast && (request.root < 0 || request.root >= size)) {
    refuse_request(request, "root " + std::to_string(request.root) + " does not exist; there are " +
                                std::to_string(size) + " ranks");
  }
}

void check_addresses(const Request& request, const std::vector<Address>& addresses) {
  if (is_point_to_point(request.verb)) {
    const void* const memory = request.verb == Verb::kSend ? addresses.at(0).in : addresses.at(0).out;
    if (memory == nullptr && element_count(request.tensors[0].shape) > 0)
      refuse_request(request, "no memory was given");
  }
  if (!moves_data(request.verb)) return;
  const bool in_place = !changes_shape(request.verb);
  std::vector<Range> outputs;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto bytes =
        static_cast<std::size_t>(element_count(request.tensors[i].shape)) * size_of(request.tensors[i].dtype);
    const auto* out = static_cast<const std::byte*>(addresses[i].out);
    const auto room = addresses[i].room == Address::kFits ? bytes : static_cast<std::size_t>(addresses[i].room);
    if (out == nullptr || room == 0) continue;
    const Range output{out, out + room, i};
    for (std::size_t j = 0; j < addresses.size(); ++j) {
      if (in_place && (j != i || addresses[i].in == out)) continue;
      refuse_overlap(request, output, addresses, j);
    }
    outputs.push_back(output);
  }
  std::sort(outputs.begin(), outputs.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i].begin < outputs[i - 1].end) {
      refuse_request(request, "tensors " + std::to_string(outputs[i - 1].tensor) + " and " +
                                  std::to_string(outputs[i].tensor) + " share memory");
    }
  }
}

}  // namespace sirtaki
