// The words that travel between the stations: what a tensor is, what was asked, and which ranks asked it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sirtaki {

// Numbers are part of the wire format and of the Python binding; append, never reorder.
enum class DType : std::uint8_t {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};
inline constexpr int kDTypeCount = 13;

enum class Verb : std::uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReducescatter,
  kBarrier,
  kJoin,
  kAddProcessSet,
  kRemoveProcessSet,
};
inline constexpr int kVerbCount = 9;

// Horovod's numbers, since programs store them.
enum class ReduceOp : std::uint8_t { kAverage, kSum, kAdasum, kMin, kMax, kProduct };
inline constexpr int kReduceOpCount = 6;

inline constexpr int kHostDevice = -1;  // otherwise the number of a GPU

std::size_t size_of(DType dtype);
std::string_view name_of(DType dtype);
std::string_view name_of(Verb verb);
std::string_view name_of(ReduceOp op);
std::string name_of_device(int device);
bool is_integer(DType dtype);  // bool is not one

using Shape = std::vector<std::int64_t>;
std::int64_t element_count(const Shape& shape);
std::int64_t row_size(const Shape& shape);  // elements of one row along dimension 0
std::string to_string(const Shape& shape);  // "(2, 3)"

struct TensorSpec {
  DType dtype = DType::kFloat32;
  int device = kHostDevice;
  Shape shape;
  bool operator==(const TensorSpec&) const = default;
};

// The tensors of one request. Never changed, so copies share them, and comparing a copy costs nothing.
class TensorSpecs {
 public:
  TensorSpecs() = default;
  TensorSpecs(std::initializer_list<TensorSpec> specs) : TensorSpecs(std::vector<TensorSpec>(specs)) {}
  explicit TensorSpecs(std::vector<TensorSpec> specs)
      : specs_(std::make_shared<const std::vector<TensorSpec>>(std::move(specs))) {}

  std::size_t size() const { return specs_ == nullptr ? 0 : specs_->size(); }
  bool empty() const { return size() == 0; }
  const TensorSpec* begin() const { return specs_ == nullptr ? nullptr : specs_->data(); }
  const TensorSpec* end() const { return begin() + size(); }
  const TensorSpec& operator[](std::size_t i) const { return (*specs_)[i]; }
  bool operator==(const TensorSpecs& other) const {
    return specs_ == other.specs_ || std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::shared_ptr<const std::vector<TensorSpec>> specs_;
};

// What one rank asks for, as the other ranks may know it: no addresses. A grouped call is one request with several
// tensors, so it is agreed and run as one unit.
struct Request {
  std::string name;            // without a number when the caller gave none
  std::uint64_t sequence = 0;  // counts nameless requests of one verb; 0 when the caller named it
  Verb verb = Verb::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = -1;  // rank within the group, broadcast only
  TensorSpecs tensors;
  std::vector<std::int64_t> splits;  // alltoall: rows for each rank; process sets: their global ranks
  std::string site;                  // "train.py:41", where the user's program asked

  // Name and number as messages show them.
  std::string title() const;
  bool operator==(const Request&) const = default;
};

}  // namespace sirtaki
