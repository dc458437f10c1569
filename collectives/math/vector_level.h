// Which vector instructions the kernels use. Chosen at run time, by functions that are compiled for each; the results
// have the same bits at every level.
#pragma once

#include <cstdint>
#include <vector>

namespace sirtaki {

enum class VectorLevel : std::uint8_t { kPortable, kAvx2, kAvx512 };

// Those that this machine has, from kPortable upwards.
std::vector<VectorLevel> vector_levels();

// The last of them.
VectorLevel best_vector_level();

#if defined(__x86_64__)

template <class Loop>
[[gnu::target("avx2,f16c")]] void run_with_avx2(Loop loop) {
  loop();
}

template <class Loop>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] void run_with_avx512(Loop loop) {
  loop();
}

#endif

// Runs a loop, an object whose operator() is always inlined, compiled for that level. By value: what the loop stores
// cannot change its own members then, as compilers would have to assume of bytes.
template <class Loop>
void run_at(VectorLevel level, Loop loop) {
#if defined(__x86_64__)
  if (level == VectorLevel::kAvx512) return run_with_avx512(loop);
  if (level == VectorLevel::kAvx2) return run_with_avx2(loop);
#endif
  static_cast<void>(level);
  loop();
}

}  // namespace sirtaki
