// One operation of a plane with random verb, sizes, dtype, op and factors, and what it must give, to the bit.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plane/data_plane.h"

namespace sirtaki::contract {

class RandomOperation {
 public:
  // `random` is in the same state on all ranks of the plane, and stays so.
  RandomOperation(DataPlane& plane, int rank, int size, std::mt19937& random);

  // True once finished and found right; throws if it is wrong.
  bool advance();

 private:
  using Memory = std::vector<std::byte>;
  using Counts = std::vector<std::int64_t>;

  Memory input(int rank, std::size_t tensor, std::int64_t count) const;
  std::int64_t random_count(std::mt19937& random) const;
  void begin_allreduce(std::mt19937& random);
  void begin_broadcast(std::mt19937& random);
  void begin_allgather(std::mt19937& random);
  void begin_reducescatter(std::mt19937& random);
  void begin_alltoall(std::mt19937& random);
  Memory reduced(std::size_t tensor, std::int64_t begin, std::int64_t count, std::int64_t total) const;

  DataPlane& plane_;
  int rank_;
  int size_;
  std::uint32_t seed_;
  Reduction reduction_;
  std::size_t item_ = 1;
  std::string what_;
  std::vector<Memory> in_, out_, expected_;
  std::vector<void*> results_;
  std::vector<Segment> segments_;
  Spread spread_;
  Exchange exchange_;
  Task task_;
};

}  // namespace sirtaki::contract
