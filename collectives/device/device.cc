#include "device/device.h"

#include "base/error.h"

namespace sirtaki {

void Event::block_all_streams() { throw Error(ErrorKind::kPrecondition, "this GPU cannot make all its streams wait"); }

EventPtr Device::record_all() {
  throw Error(ErrorKind::kPrecondition, "this GPU cannot record the work queued on all its streams");
}

}  // namespace sirtaki
