// The errors that the core throws. Adapters map each kind to the exception that users expect.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace sirtaki {

enum class ErrorKind {
  kInvalidArgument,  // the call itself is wrong: Python ValueError
  kPrecondition,     // ranks disagree, or the engine cannot do this now: HorovodInternalError
  kAborted,          // the job has failed or ended: HorovodInternalError
};

// Each copy has its own text. Copies of the standard library's exceptions share theirs, which is unsafe across threads.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
};

// The connection to a rank has ended, although the rank has not left the job.
class LostRank : public Error {
 public:
  // `rank`: in the job. `why`: continues the sentence "rank 3 failed: ".
  LostRank(int rank, std::string why) : Error(ErrorKind::kAborted, std::move(why)), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

}  // namespace sirtaki
