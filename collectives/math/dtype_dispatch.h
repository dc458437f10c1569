// The one place that turns a DType into a C++ type.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "base/types.h"
#include "math/half.h"

namespace sirtaki {

// Calls `body(std::type_identity<T>{})` with the C++ type that stores the dtype. bool is stored as uint8_t.
template <class Body>
decltype(auto) with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8:
      return body(std::type_identity<std::uint8_t>{});
    case DType::kInt8:
      return body(std::type_identity<std::int8_t>{});
    case DType::kUint16:
      return body(std::type_identity<std::uint16_t>{});
    case DType::kInt16:
      return body(std::type_identity<std::int16_t>{});
    case DType::kUint32:
      return body(std::type_identity<std::uint32_t>{});
    case DType::kInt32:
      return body(std::type_identity<std::int32_t>{});
    case DType::kUint64:
      return body(std::type_identity<std::uint64_t>{});
    case DType::kInt64:
      return body(std::type_identity<std::int64_t>{});
    case DType::kFloat16:
      return body(std::type_identity<Float16>{});
    case DType::kBfloat16:
      return body(std::type_identity<Bfloat16>{});
    case DType::kFloat32:
      return body(std::type_identity<float>{});
    case DType::kFloat64:
      return body(std::type_identity<double>{});
  }
  throw std::logic_error("unknown dtype");
}

}  // namespace sirtaki
