// Sleeping in the kernel until another thread changes a word. Unlike with condition
// variables, a signal (Ctrl-C) interrupts the wait, and a wake-up need not cost anything while no thread sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace sirtaki {

enum class WakeReason { kWoken, kTimeout, kInterrupted };

// Where the word is changed: only in this process, or in any process of this host that shares the memory.
enum class FutexScope { kProcess, kHost };

// Sleeps while `word` holds `expected`. May return kWoken without reason; check again.
WakeReason futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                      std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                      FutexScope scope = FutexScope::kProcess);
void futex_wake_all(std::atomic<std::uint32_t>& word, FutexScope scope = FutexScope::kProcess);

}  // namespace sirtaki
