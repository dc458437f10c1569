#include "coordinator/cycle_finder.h"

#include <algorithm>
#include <utility>

namespace sirtaki {
namespace {

constexpr std::uint64_t kMostNeeded = 1024;
// A plan that has served so many times what it took to find it was worth making.
constexpr std::uint64_t kWorthwhile = 8;

}  // namespace

void CycleFinder::add(Entry entry) {
  found_.reset();
  if (in_current_.contains(entry.slot)) {
    previous_ = std::exchange(in_current_, {});
    restart();
    repeats_ = 0;
  }
  current_.push_back(entry);
  in_current_.insert(entry.slot);
  subset_ &= previous_.contains(entry.slot);
  if (!subset_ || current_.size() != previous_.size()) return;
  if (++repeats_ >= needed_) found_ = current_;
  restart();
}

void CycleFinder::forget() {
  restart();
  previous_.clear();
  repeats_ = 0;
  found_.reset();
}

std::optional<std::vector<CycleFinder::Entry>> CycleFinder::take() {
  auto result = std::exchange(found_, std::nullopt);
  if (result) forget();
  return result;
}

void CycleFinder::left_after(std::uint64_t steps) {
  needed_ = steps >= kWorthwhile * needed_ ? 1 : std::min(kMostNeeded, 2 * needed_);
  forget();
}

void CycleFinder::restart() {
  current_.clear();
  in_current_.clear();
  subset_ = true;
}

}  // namespace sirtaki
