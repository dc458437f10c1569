// Which names of calls are taken. A name is taken until the program has learned of its call's result, or has dropped
// the call. Both follow from the program alone, so that all ranks refuse the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "types.h"
#include "work.h"

namespace sirtaki {

class NamesInUse {
 public:
  // Takes the request's name and number for this work; Error(kInvalidArgument) if the name is taken.
  // An earlier work of that name that nobody waits for any more and that is not done yet, or null: the new request has
  // to wait for it.
  std::shared_ptr<Work> take(const Request& request, const std::shared_ptr<Work>& work);

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

  // Entries of free names stay until their name is used again, or there are many: a step that uses the names of the
  // step before allocates nothing.
  std::map<std::pair<std::string, std::uint64_t>, std::weak_ptr<Work>, Before> works_;
  std::size_t many_ = 64;
};

}  // namespace sirtaki
