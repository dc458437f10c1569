#include "base/types.h"

#include <array>
#include <functional>
#include <numeric>

namespace sirtaki {
namespace {

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
  bool integer;
};

constexpr std::array<DTypeFacts, kDTypeCount> kDTypes = {{
    {"bool", 1, false},
    {"uint8", 1, true},
    {"int8", 1, true},
    {"uint16", 2, true},
    {"int16", 2, true},
    {"uint32", 4, true},
    {"int32", 4, true},
    {"uint64", 8, true},
    {"int64", 8, true},
    {"float16", 2, false},
    {"bfloat16", 2, false},
    {"float32", 4, false},
    {"float64", 8, false},
}};

constexpr std::array<std::string_view, kVerbCount> kVerbs = {
    "allreduce", "allgather",       "broadcast",          "alltoall", "reducescatter", "barrier",
    "join",      "add_process_set", "remove_process_set", "send",     "receive",
};

constexpr std::array<std::string_view, kReduceOpCount> kOps = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};

}  // namespace

std::size_t size_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].size; }
std::string_view name_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }
bool is_integer(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].integer; }
std::string_view name_of(Verb verb) { return kVerbs[static_cast<std::size_t>(verb)]; }
std::string_view name_of(ReduceOp op) { return kOps[static_cast<std::size_t>(op)]; }

std::string name_of_device(int device) { return device == kHostDevice ? "cpu" : "gpu:" + std::to_string(device); }

std::int64_t element_count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t row_size(const Shape& shape) {
  if (shape.empty()) return 1;
  return std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string Request::title() const { return sequence == 0 ? name : name + "." + std::to_string(sequence); }

}  // namespace sirtaki
