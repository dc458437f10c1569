// The vector instructions that the kernels use. Kernels are compiled for each level, and the level is chosen at run
// time. Results have the same bits at every level. NEON is always there on aarch64, so compilers use it at level
// kPortable, too; at kNeon the kernels also use instructions that compilers do not find by themselves.
#pragma once

#include <cstdint>
#include <vector>

namespace sirtaki {

enum class VectorLevel : std::uint8_t { kPortable, kNeon, kAvx2, kAvx512 };

// The levels that this machine supports, from kPortable upwards.
std::vector<VectorLevel> vector_levels();

// The last of vector_levels().
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

// Runs a loop, compiled for that level. A loop is an object whose operator() is always inlined. It is passed by value,
// so that compilers need not assume that the bytes it stores change its own members.
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
