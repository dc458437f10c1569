#pragma once

#include <chrono>

namespace sirtaki {

using Clock = std::chrono::steady_clock;

}  // namespace sirtaki
