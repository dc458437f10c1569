// What the contract suites share: a check that says where it failed, and waiting by turns.
#pragma once

#include <sched.h>

#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/task.h"

namespace sirtaki::contract {

inline void check(bool holds, const std::string& what, std::source_location where = std::source_location::current()) {
  if (holds) return;
  throw std::runtime_error(std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + what);
}

// The call must fail with this kind of error and a message that holds the text.
inline void check_error(ErrorKind kind, const std::string& text, const std::function<void()>& call,
                        std::source_location where = std::source_location::current()) {
  try {
    call();
  } catch (const Error& error) {
    check(error.kind() == kind && std::string(error.what()).find(text) != std::string::npos,
          std::string("unexpected error: ") + error.what(), where);
    return;
  }
  check(false, "no error, expected one with: " + text, where);
}

// Gives way between polls, since there may be more ranks than cores.
template <typename Condition>
void wait_until(Condition condition) {
  while (!condition()) sched_yield();
}

inline void wait(PendingPtr pending) {
  if (pending != nullptr) wait_until([&] { return pending->ready(); });
}

inline void wait(Task task) {
  wait_until([&] { return task.advance(); });
}

}  // namespace sirtaki::contract
