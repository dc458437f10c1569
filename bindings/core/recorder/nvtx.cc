#include "core/recorder/nvtx.h"

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "core/process.h"
#include "loader/shared_library.h"
#include "observer/nvtx_ranges.h"

namespace sirtaki {
namespace {

// Never deleted: an engine may call its observers until it has ended.
struct Ranges {
  std::mutex mutex;
  std::string library;
  std::unique_ptr<NvtxRanges> observer;
  std::weak_ptr<Engine> engine;  // that has this observer
};

Ranges& ranges() {
  static auto* const instance = new Ranges;
  return *instance;
}

template <class Function>
bool find(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.symbol(name));
  return function != nullptr;
}

std::optional<NvtxCalls> calls_of(const std::string& path) try {
  const SharedLibrary library = SharedLibrary::open(path);
  NvtxCalls calls;
  const bool all = find(library, "nvtxRangeStartA", calls.start) && find(library, "nvtxRangeEnd", calls.end) &&
                   find(library, "nvtxRangePushA", calls.push) && find(library, "nvtxRangePop", calls.pop) &&
                   find(library, "nvtxMarkA", calls.mark);
  return all ? std::optional(calls) : std::nullopt;
} catch (const std::runtime_error&) {
  return std::nullopt;
}

void load(Ranges& ranges, const std::vector<std::string>& libraries) {
  for (const std::string& path : libraries) {
    const std::optional<NvtxCalls> calls = calls_of(path);
    if (!calls) continue;
    ranges.observer = std::make_unique<NvtxRanges>(*calls);
    ranges.library = path;
    return;
  }
}

}  // namespace

std::string mark_ranges(const std::vector<std::string>& libraries) {
  Ranges& own = ranges();
  const std::lock_guard lock(own.mutex);
  if (own.observer == nullptr) load(own, libraries);
  if (own.observer != nullptr) own.observer->switch_to(!libraries.empty());
  if (own.observer == nullptr || libraries.empty()) return "";
  const auto engine = engine_for_query();
  if (own.engine.lock() != engine) engine->observe(*own.observer);
  own.engine = engine;
  return own.library;
}

}  // namespace sirtaki
