// Sleeping in the kernel until another thread changes a word. Used instead of condition variables where a signal
// (Ctrl-C) has to interrupt the wait, or where waking has to cost nothing when nobody sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace sirtaki {

enum class Wake { kWoken, kTimeout, kInterrupted };

// Sleeps while `word` holds `expected`. May return kWoken without reason; check again.
Wake futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace sirtaki
