// A request together with this rank's memory and its Work. It never leaves the process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "device/device.h"
#include "queue/work.h"

namespace sirtaki {

// The memory of one tensor. If `out` is null, the core or `allocate` provides the memory once the size is known.
// `room`: bytes at `out`, where only the ranks together know the result's size. If it differs, `out` is not written,
// the result goes elsewhere as if `out` were null, and Result::misfit says so. Other ranks do not notice.
struct Address {
  static constexpr std::int64_t kFits = -1;

  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t room = kFits;

  bool has_room_for(std::size_t bytes) const {
    return out != nullptr && (room == kFits || static_cast<std::size_t>(room) == bytes);
  }
  std::string misfit(std::size_t bytes, const Shape& shape) const;
};

// Returns memory for output number `tensor` of this shape; called on the engine's thread. On a GPU, all writes to it
// are queued on `stream`.
using Allocate = std::function<void*(std::size_t tensor, const Shape& shape, Stream stream)>;

// The destructor fails a work that is not done, so that no thread waits for it for ever.
struct Submission {
  Submission() = default;
  Submission(Request request_, std::vector<Address> addresses_, Allocate allocate_ = nullptr, EventPtr ready_ = nullptr)
      : request(std::move(request_)),
        addresses(std::move(addresses_)),
        work(std::make_shared<Work>()),
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
  Clock::time_point since;         // when the program submitted it
  std::uint64_t epoch = 0;         // submissions have equal epochs if no thread began to wait between them
  std::shared_ptr<Work> work;
  Allocate allocate;  // optional on the host
  EventPtr ready;     // GPU: the event after which the memory holds the data to send
};

}  // namespace sirtaki
