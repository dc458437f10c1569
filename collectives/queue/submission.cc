#include "queue/submission.h"

namespace sirtaki {

std::string Address::misfit(std::size_t bytes, const Shape& shape) const {
  return "the given memory has " + std::to_string(room) + " bytes, but the result has the shape " + to_string(shape) +
         " and " + std::to_string(bytes) + " bytes";
}

}  // namespace sirtaki
