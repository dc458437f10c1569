#include "watch/finished_calls.h"

#include "agreement/rank_status.h"

namespace sirtaki {

// Copies into the memory of the last name, so this does not allocate.
void FinishedCalls::on_completed(int, const Request& request, const Error* error) {
  if (error != nullptr) return;
  last_.name = request.name;
  last_.sequence = request.sequence;
  last_.verb = request.verb;
  last_at_ = coarse_now();
  ++count_;
}

std::string FinishedCalls::describe(Clock::time_point now) const {
  std::string text = "collectives finished: " + std::to_string(count_);
  if (count_ > 0) {
    text += ", the last " + std::string(name_of(last_.verb)) + " '" + last_.title() + "' " +
            seconds_since(last_at_, now) + " ago";
  }
  return text;
}

}  // namespace sirtaki
