#include "math/vector_level.h"

namespace sirtaki {

std::vector<VectorLevel> vector_levels() {
  std::vector<VectorLevel> levels = {VectorLevel::kPortable};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (avx2) levels.push_back(VectorLevel::kAvx2);
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (avx2 && avx512) levels.push_back(VectorLevel::kAvx512);
#elif defined(__aarch64__)
  levels.push_back(VectorLevel::kNeon);
#endif
  return levels;
}

VectorLevel best_vector_level() {
  static const VectorLevel best = vector_levels().back();
  return best;
}

}  // namespace sirtaki
