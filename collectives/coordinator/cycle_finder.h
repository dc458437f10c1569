// Detects that the ranks repeat the same step, from the sequence of agreed requests. Runs on the coordinator only; pure
// logic.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "agreement/messages.h"

namespace sirtaki {

class CycleFinder {
 public:
  struct Entry {
    CacheSlot slot;
    std::uint64_t epoch;  // entries have equal epochs if the program did not wait between them
  };

  // All ranks have agreed again on a request of the cache.
  void add(Entry entry);
  // Another request came in between: start anew.
  void forget();

  // The step that repeats, in the order in which its requests were agreed on. Returned only directly after the end of a
  // step, when every rank has agreed on each of its requests equally often.
  std::optional<std::vector<Entry>> take();

  // The ranks left a plan after this many steps. If that was early, more repetitions are needed before the next plan.
  void left_after(std::uint64_t steps);

 private:
  void restart();

  std::vector<Entry> current_;
  std::unordered_set<CacheSlot> in_current_;
  std::unordered_set<CacheSlot> previous_;
  bool subset_ = true;  // current_ of previous_
  std::uint64_t repeats_ = 0;
  std::uint64_t needed_ = 1;
  std::optional<std::vector<Entry>> found_;
};

}  // namespace sirtaki
