// The values of predefined handles and constants in one MPI's binary interface (ABI).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sirtaki {

// The datatypes, operations and thread levels that Sirtaki uses. Their numbers index the tables below.
enum class MpiType : std::uint8_t {
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat,
  kDouble,
};
inline constexpr std::size_t kMpiTypeCount = 10;

enum class MpiOp : std::uint8_t { kSum, kMin, kMax, kProduct };
inline constexpr std::size_t kMpiOpCount = 4;

enum class MpiThreads : std::uint8_t { kSingle, kFunneled, kSerialized, kMultiple };
inline constexpr std::size_t kMpiThreadsCount = 4;

// The same in every interface.
inline constexpr int kMpiSuccess = 0;
inline constexpr int kMpiUndefined = -32766;

// Handle is what the library passes for a communicator, request, datatype and so on: an int or a pointer.
template <typename Handle>
struct MpiAbi {
  std::string_view name;
  Handle comm_world;
  Handle comm_null;
  Handle errors_return;
  std::array<Handle, kMpiTypeCount> types;
  std::array<Handle, kMpiOpCount> ops;
  std::array<int, kMpiThreadsCount> threads;
  void* in_place;
  void* status_ignore;
};

}  // namespace sirtaki
