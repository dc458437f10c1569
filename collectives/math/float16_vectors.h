// Converts float16 to and from float32 by processor instructions (F16C). They give the same bits as half.h, also for
// NaNs.
#pragma once

#include <cstdint>

#include "math/half.h"
#include "math/vector_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sirtaki {

// Each function converts the first count / 8 * 8 elements, times `factor`, and returns their number. It returns 0 on
// processors without such instructions.
#if defined(__x86_64__)

[[gnu::target("avx2,f16c")]] inline std::int64_t widen_by_vectors(float* out, const Float16* in, std::int64_t count,
                                                                  float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_ps(out + i, factor == 1.0F ? wide : _mm256_mul_ps(wide, factors));
  }
  return i;
}

[[gnu::target("avx2,f16c")]] inline std::int64_t narrow_by_vectors(Float16* out, const float* in, std::int64_t count,
                                                                   float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = _mm256_loadu_ps(in + i);
    const __m256 scaled = factor == 1.0F ? wide : _mm256_mul_ps(wide, factors);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

#else

inline std::int64_t widen_by_vectors(float*, const Float16*, std::int64_t, float) { return 0; }
inline std::int64_t narrow_by_vectors(Float16*, const float*, std::int64_t, float) { return 0; }

#endif

}  // namespace sirtaki
