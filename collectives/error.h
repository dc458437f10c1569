// The errors that cross the core's border. Adapters map each kind to the exception that users expect.
#pragma once

#include <stdexcept>
#include <string>

namespace sirtaki {

enum class ErrorKind {
  kInvalidArgument,  // the call itself is wrong: Python ValueError
  kPrecondition,     // ranks disagree, or the engine is not in a state to do it: HorovodInternalError
  kAborted,          // the job has failed or ended: HorovodInternalError
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace sirtaki
