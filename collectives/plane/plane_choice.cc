#include "plane/plane_choice.h"

#include "base/error.h"

namespace sirtaki {

DataPlane* find(const DataPlanes& planes, const PlaneQuery& query) {
  for (const auto& plane : planes) {
    if (plane->supports(query)) return plane.get();
  }
  return nullptr;
}

DataPlane& choose(const DataPlanes& planes, const PlaneQuery& query) {
  if (DataPlane* const plane = find(planes, query)) return *plane;
  std::string tried;
  for (const auto& plane : planes) tried += (tried.empty() ? "" : ", ") + std::string(plane->name());
  throw Error(ErrorKind::kPrecondition, "No data plane can run " + std::string(name_of(query.verb)) + " of " +
                                            std::string(name_of(query.dtype)) + " on " + name_of_device(query.device) +
                                            " (asked: " + tried + "). Move the tensor to the CPU.");
}

}  // namespace sirtaki
