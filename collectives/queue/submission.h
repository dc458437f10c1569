// A request together with this rank's memory. Never leaves the process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "device/device.h"
#include "queue/work.h"

namespace sirtaki {

// Where one tensor lies. A null `out` asks the core (or `allocate`) for the memory, once its size is known.
struct Address {
  const void* in = nullptr;
  void* out = nullptr;
};

// Gives the memory for output number `tensor` of this shape, on the engine's thread. On a GPU, what writes there is
// queued on `stream`.
using Allocate = std::function<void*(std::size_t tensor, const Shape& shape, Stream stream)>;

// Whoever drops one fails its work, so that nobody waits for it for ever.
struct Submission {
  Submission() = default;
  Submission(Request request_, std::vector<Address> addresses_, std::shared_ptr<Work> work_, Allocate allocate_,
             EventPtr ready_ = nullptr)
      : request(std::move(request_)),
        addresses(std::move(addresses_)),
        work(std::move(work_)),
        allocate(std::move(allocate_)),
        ready(std::move(ready_)) {}
  Submission(Submission&&) = default;
  Submission& operator=(Submission&&) = delete;
  ~Submission() {
    if (work != nullptr && !work->done())
      work->fail(Error(ErrorKind::kAborted, "'" + request.title() + "' was dropped"));
  }

  Request request;
  std::vector<Address> addresses;  // one for each tensor of the request
  Clock::time_point since;         // when it was asked for
  std::uint64_t epoch = 0;         // equal if no thread began to wait for anything in between
  std::shared_ptr<Work> work;
  Allocate allocate;  // optional on the host
  EventPtr ready;     // GPU: the point from which on the memory holds what is to be sent
};

}  // namespace sirtaki
