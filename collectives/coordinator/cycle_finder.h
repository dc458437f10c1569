// Finds out that ranks do the same step again and again, from what they agree on. Coordinator only; pure logic.
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
    std::uint64_t epoch;  // entries of equal epoch were asked for without a wait in between
  };

  // All ranks have agreed on a request that they had agreed on before.
  void saw(Entry entry);
  // Something came in between: nothing that was seen so far counts.
  void forget();

  // The step that repeats, in the order in which its requests came together. Only when nothing has followed its end, so
  // that every rank has agreed on each of its requests equally often.
  std::optional<std::vector<Entry>> take();

  // A plan made of one was left after so many steps. Whoever leaves soon has to show more patience the next time.
  void left_after(std::uint64_t steps);

 private:
  void begin_anew();

  std::vector<Entry> current_;
  std::unordered_set<CacheSlot> in_current_;
  std::unordered_set<CacheSlot> previous_;
  bool subset_ = true;  // current_ of previous_
  std::uint64_t repeats_ = 0;
  std::uint64_t needed_ = 1;
  std::optional<std::vector<Entry>> found_;
};

}  // namespace sirtaki
