// The names of this rank's calls in one process set. A name is taken until the program has read the call's result, or
// has dropped the call. Both depend only on the program, so all ranks refuse the same call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/types.h"
#include "queue/work.h"

namespace sirtaki {

class CallNames {
 public:
  // Takes the request's name for this work; an unnamed request first gets a name and a number. Throws
  // Error(kInvalidArgument) if the name is taken. Returns an unfinished earlier work of that name which the program has
  // dropped, or null. The new request must not be sent before that work is done.
  std::shared_ptr<Work> take(Request& request, const std::shared_ptr<Work>& work);
  // The next unnamed request of each verb is number 1 again.
  void restart_numbers() { counts_.fill(0); }

 private:
  using View = std::pair<std::string_view, std::uint64_t>;
  struct Before {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return View(a.first, a.second) < View(b.first, b.second);
    }
  };

  void drop_free_names();

  // The entry of a free name stays until its name is used again, or until there are many entries. So a step that uses
  // the names of the step before allocates nothing.
  std::map<std::pair<std::string, std::uint64_t>, std::weak_ptr<Work>, Before> works_;
  std::size_t many_ = 64;
  std::array<std::uint64_t, kVerbCount> counts_{};
};

}  // namespace sirtaki
