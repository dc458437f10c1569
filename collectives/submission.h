// A request together with this rank's memory. Never leaves the process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "types.h"
#include "work.h"

namespace sirtaki {

// Where one tensor lies. A null `out` asks the core (or `allocate`) for the memory, once its size is known.
struct Address {
  const void* in = nullptr;
  void* out = nullptr;
};

struct Submission {
  Request request;
  std::vector<Address> addresses;  // one for each tensor of the request
  std::shared_ptr<Work> work;
  // Gives the memory for output number `tensor` of this shape, on the engine's thread; optional.
  std::function<void*(std::size_t tensor, const Shape& shape)> allocate;
};

}  // namespace sirtaki
