#include "queue/submission.h"

namespace sirtaki {

// Empty if the result goes to `out`, or if there is none.
std::string Address::misfit(std::size_t bytes, const Shape& shape) const {
  if (out == nullptr || has_room_for(bytes)) return "";
  return "the given memory has " + std::to_string(room) + " bytes, but the result has the shape " + to_string(shape) +
         " and " + std::to_string(bytes) + " bytes. ";
}

}  // namespace sirtaki
