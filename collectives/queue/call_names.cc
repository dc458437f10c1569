#include "queue/call_names.h"

#include <algorithm>

#include "base/error.h"

namespace sirtaki {
namespace {

// A program cannot reuse the name of an unnamed call, except when the numbers start again after a join.
bool is_taken(const Work& work, std::uint64_t sequence) { return sequence == 0 && !work.known(); }

}  // namespace

std::shared_ptr<Work> CallNames::take(Request& request, const std::shared_ptr<Work>& work) {
  const bool nameless = request.name.empty();
  std::uint64_t& count = counts_[static_cast<std::size_t>(request.verb)];
  if (nameless) {
    request.name = std::string(name_of(request.verb)) + ".noname";
    request.sequence = count + 1;
  }
  std::shared_ptr<Work> earlier;
  const auto found = works_.find(View(request.name, request.sequence));
  if (found == works_.end()) {
    if (works_.size() >= many_) drop_free_names();
    works_.emplace(std::pair(request.name, request.sequence), work);
  } else {
    earlier = found->second.lock();
    if (earlier != nullptr && is_taken(*earlier, request.sequence)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "'" + request.title() +
                      "' is used again before this rank's program has received the first call's result. Call "
                      "synchronize() on the first handle first, or give every call its own name. "
                      "A graph with a call in it must not run several times at once, as in a parallel map over a "
                      "dataset or in two threads.");
    }
    found->second = work;
  }
  if (nameless) ++count;
  return earlier == nullptr || earlier->done() ? nullptr : earlier;
}

void CallNames::drop_free_names() {
  std::erase_if(works_, [](const auto& entry) {
    const std::shared_ptr<Work> work = entry.second.lock();
    return work == nullptr || (work->done() && !is_taken(*work, entry.first.second));
  });
  many_ = std::max<std::size_t>(64, 2 * works_.size());
}

}  // namespace sirtaki
