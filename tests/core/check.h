// The little that these tests need of a test framework; none is at hand on a bare machine that builds the core.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <source_location>
#include <string>

namespace sirtaki::testing {

[[noreturn]] inline void fail(const std::string& what, const std::source_location& where) {
  std::fprintf(stderr, "%s:%u: %s\n", where.file_name(), where.line(), what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

inline void check(bool condition, const std::string& what,
                  const std::source_location& where = std::source_location::current()) {
  if (!condition) fail("failed: " + what, where);
}

template <class A, class B>
void check_equal(const A& got, const B& expected, const std::string& what,
                 const std::source_location& where = std::source_location::current()) {
  if (got == expected) return;
  std::string values;
  if constexpr (requires { std::to_string(got), std::to_string(expected); }) {
    values = ": got " + std::to_string(got) + ", expected " + std::to_string(expected);
  } else if constexpr (requires { std::string(got), std::string(expected); }) {
    values = ": got '" + std::string(got) + "', expected '" + std::string(expected) + "'";
  }
  fail("differs: " + what + values, where);
}

inline void check_contains(const std::string& text, const std::string& part,
                           const std::source_location& where = std::source_location::current()) {
  if (text.find(part) == std::string::npos) fail("'" + part + "' is not in:\n" + text, where);
}

// The exception of that type that the call throws; anything else fails the test.
template <class Exception, class Call>
Exception expect_throw(Call&& call, const std::string& what,
                       const std::source_location& where = std::source_location::current()) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception;
  }
  fail("did not throw: " + what, where);
}

}  // namespace sirtaki::testing
