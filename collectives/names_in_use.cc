#include "names_in_use.h"

#include <algorithm>

#include "error.h"

namespace sirtaki {
namespace {

// The program cannot give a nameless call's name again, except when the numbers begin anew after a join.
bool is_taken(const Work& work, std::uint64_t sequence) { return sequence == 0 && !work.known(); }

}  // namespace

std::shared_ptr<Work> NamesInUse::take(const Request& request, const std::shared_ptr<Work>& work) {
  const auto found = works_.find(View(request.name, request.sequence));
  if (found == works_.end()) {
    if (works_.size() >= many_) drop_free_names();
    works_.emplace(std::pair(request.name, request.sequence), work);
    return nullptr;
  }
  std::shared_ptr<Work> earlier = found->second.lock();
  if (earlier != nullptr && is_taken(*earlier, request.sequence)) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + request.title() +
                    "' is given again before this rank's program has learned of the first call's result. Call "
                    "synchronize() on the first handle before the name is used again, or give every call a name of its "
                    "own. A graph with a call in it must not run several times at once, as in a parallel map over a "
                    "dataset or in two threads.");
  }
  found->second = work;
  return earlier == nullptr || earlier->done() ? nullptr : earlier;
}

void NamesInUse::drop_free_names() {
  std::erase_if(works_, [](const auto& entry) {
    const std::shared_ptr<Work> work = entry.second.lock();
    return work == nullptr || (work->done() && !is_taken(*work, entry.first.second));
  });
  many_ = std::max<std::size_t>(64, 2 * works_.size());
}

}  // namespace sirtaki
