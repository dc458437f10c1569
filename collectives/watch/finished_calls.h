// The number of requests that have succeeded, and the last one, for status reports. Read and written by the thread that
// does the engine's work.
#pragma once

#include <string>

#include "observer/observer.h"

namespace sirtaki {

class FinishedCalls final : public Observer {
 public:
  // "collectives finished: 7, the last allreduce 'x' 3.2 s ago".
  std::string describe(Clock::time_point now) const;

  void on_completed(int group, const Request& request, const Error* error) override;

 private:
  Request last_;  // without its tensors
  Clock::time_point last_at_;
  std::uint64_t count_ = 0;
};

}  // namespace sirtaki
