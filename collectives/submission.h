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

// Whoever drops one fails its work, so that nobody waits for it for ever.
struct Submission {
  Submission() = default;
  Submission(Request request_, std::vector<Address> addresses_, std::shared_ptr<Work> work_,
             std::function<void*(std::size_t, const Shape&)> allocate_)
      : request(std::move(request_)),
        addresses(std::move(addresses_)),
        work(std::move(work_)),
        allocate(std::move(allocate_)) {}
  Submission(Submission&&) = default;
  Submission& operator=(Submission&&) = delete;
  ~Submission() {
    if (work != nullptr && !work->done())
      work->fail(Error(ErrorKind::kAborted, "'" + request.title() + "' was dropped"));
  }

  Request request;
  std::vector<Address> addresses;  // one for each tensor of the request
  std::shared_ptr<Work> work;
  // Gives the memory for output number `tensor` of this shape, on the engine's thread; optional.
  std::function<void*(std::size_t tensor, const Shape& shape)> allocate;
};

}  // namespace sirtaki
