// How often each data plane has been chosen, by its name. The engine's thread counts, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace sirtaki {

class PlaneUses {
 public:
  using Counter = std::atomic<std::uint64_t>;

  // Shared by all planes of that name; stays where it is.
  Counter& of(std::string_view name) {
    const std::lock_guard lock(mutex_);
    return counters_[std::string(name)];
  }

  std::map<std::string, std::uint64_t> all() const {
    const std::lock_guard lock(mutex_);
    return {counters_.begin(), counters_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Counter> counters_;
};

}  // namespace sirtaki
