#include "queue/call_names.h"

#include "base/error.h"

namespace sirtaki {

void CallNames::take(Request& request) {
  const bool nameless = request.name.empty();
  std::uint64_t& count = counts_[static_cast<std::size_t>(request.verb)];
  if (nameless) {
    request.name = std::string(name_of(request.verb)) + ".noname";
    request.sequence = count + 1;
  }
  if (!in_flight_.insert({request.name, request.sequence}).second) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + request.title() +
                    "' is still under way on this rank: a name can be used again only after its operation has ended. "
                    "Give every call a name of its own, and do not let a graph with a call in it run several times "
                    "at once, as a parallel map over a dataset or two threads do.");
  }
  if (nameless) ++count;
}

}  // namespace sirtaki
