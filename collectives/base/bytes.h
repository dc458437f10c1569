// The bytes of a message.
#pragma once

#include <cstddef>
#include <vector>

namespace sirtaki {

using Bytes = std::vector<std::byte>;

}  // namespace sirtaki
