// Makes a call that may block for long on a separate thread.
#pragma once

#include <functional>
#include <memory>

#include "base/task.h"

namespace sirtaki {

class BlockingCall final : public Pending {
 public:
  // Data that the call uses must live until the call returns. That may be after this object is destroyed.
  explicit BlockingCall(std::function<void()> call);

  // Throws the exception of the call, if any.
  bool ready() override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sirtaki
