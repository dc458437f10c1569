// The part of DLPack's C interface (version 1, "exchange API") that reads and makes a framework's tensors. The
// standard defines the layout of these structures. A framework offers its table of functions as a capsule.
#pragma once

#include <cstdint>

namespace sirtaki::dlpack {

inline constexpr const char* kCapsule = "dlpack_exchange_api";
inline constexpr std::uint32_t kMajor = 1;

// Kinds of devices.
inline constexpr std::int32_t kHost = 1;
inline constexpr std::int32_t kCuda = 2;

// Codes of dtypes.
inline constexpr std::uint8_t kInt = 0;
inline constexpr std::uint8_t kUint = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;
inline constexpr std::uint8_t kComplex = 5;
inline constexpr std::uint8_t kBool = 6;

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  bool operator==(const DataType&) const = default;
};

struct Device {
  std::int32_t kind;
  std::int32_t number;
  bool operator==(const Device&) const = default;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

// A tensor that owns its memory, until `free` is called.
struct OwnTensor {
  std::uint32_t major;
  std::uint32_t minor;
  void* owner;
  void (*free)(OwnTensor* self);
  std::uint64_t flags;
  Tensor tensor;
};

struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* earlier;
  void* allocate;
  void* own_tensor_of;
  int (*object_of)(OwnTensor* tensor, void** out);  // takes the tensor; returns non-zero after setting a Python error
  int (*tensor_of)(void* object, Tensor* out);      // null if missing; returns non-zero after setting a Python error
  int (*current_stream)(std::int32_t kind, std::int32_t number, void** out);
};

}  // namespace sirtaki::dlpack
