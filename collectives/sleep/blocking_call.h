// A call that may block for long, made on a thread of its own.
#pragma once

#include <functional>
#include <memory>

#include "base/task.h"

namespace sirtaki {

class BlockingCall final : public Pending {
 public:
  // What the call uses must live until it returns, which may be after this has been destroyed.
  explicit BlockingCall(std::function<void()> call);

  // Throws what the call has thrown.
  bool ready() override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sirtaki
