// The basic types of the core: dtypes, verbs, reduction operators, shapes, and a request for one collective.
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
  kSend,
  kReceive,
};
inline constexpr int kVerbCount = 11;
// Do data planes run this verb?
inline bool moves_data(Verb verb) { return verb <= Verb::kReducescatter; }
// Do only two ranks take part in it, so that no vote is needed?
inline bool is_point_to_point(Verb verb) { return verb >= Verb::kSend; }
// Has a result another shape than the input? Of allgather and alltoall, only the ranks together know it.
inline bool changes_shape(Verb verb) {
  return verb == Verb::kAllgather || verb == Verb::kAlltoall || verb == Verb::kReducescatter;
}

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

// The tensors of one request. They never change, so copies share them and comparing two copies costs nothing.
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

// The collective that one rank requests, without addresses, so that it can be sent to other ranks. A grouped call is
// one request with several tensors, so that it is agreed on and run as one unit.
struct Request {
  std::string name;            // if the caller gave none: the verb's name, and `sequence` is set
  std::uint64_t sequence = 0;  // number of this unnamed request of the verb; 0 if the caller gave a name
  Verb verb = Verb::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = -1;  // broadcast: rank within the group; send, receive: the other end's rank in the job
  int tag = 0;    // send, receive; never sent in a vote
  TensorSpecs tensors;
  std::vector<std::int64_t> splits;  // alltoall: rows for each rank; process sets: their global ranks
  std::string site;                  // "train.py:41": the call site in the user's program

  // Name and number, as messages show them.
  std::string title() const;
  bool operator==(const Request&) const = default;
};

}  // namespace sirtaki
