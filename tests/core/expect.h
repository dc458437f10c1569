// What doctest lacks for these tests: errors that are looked at more closely, reported at the caller's line.
#pragma once

#include <doctest/doctest.h>

#include <source_location>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace sirtaki::testing {

inline void check_contains(const std::string& text, const std::string& part,
                           const std::source_location& where = std::source_location::current()) {
  if (text.find(part) != std::string::npos) return;
  ADD_FAIL_CHECK_AT(where.file_name(), static_cast<int>(where.line()), "'", part, "' is not in:\n", text);
}

// The exception of that type that the call throws. Ends the test if the call throws none.
template <class Exception, class Call>
Exception expect_throw(Call&& call, const std::string& what,
                       const std::source_location& where = std::source_location::current()) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception;
  }
  ADD_FAIL_AT(where.file_name(), static_cast<int>(where.line()), "did not throw: ", what);
  throw std::logic_error("unreachable: the line above throws");
}

// The call must throw an Error of this kind whose message holds `part`.
template <class Call>
void check_error(ErrorKind kind, const std::string& part, Call&& call,
                 const std::source_location& where = std::source_location::current()) {
  const auto error = expect_throw<Error>(call, "expected an error with: " + part, where);
  if (error.kind() != kind) {
    ADD_FAIL_CHECK_AT(where.file_name(), static_cast<int>(where.line()), "another kind of error: ", error.what());
  }
  check_contains(error.what(), part, where);
}

}  // namespace sirtaki::testing
