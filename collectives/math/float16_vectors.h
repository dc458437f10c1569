// Converts float16 to and from float32 by processor instructions (x86-64's F16C, and NEON on aarch64). They give the
// same bits as half.h, also for NaNs.
#pragma once

#include <cstdint>

#include "math/half.h"
#include "math/vector_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

#elif defined(__aarch64__)

inline std::int64_t widen_by_vectors(float* out, const Float16* in, std::int64_t count, float factor) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&in[i].bits));
    const float32x4_t low = vcvt_f32_f16(vget_low_f16(halves));
    const float32x4_t high = vcvt_high_f32_f16(halves);
    vst1q_f32(out + i, factor == 1.0F ? low : vmulq_n_f32(low, factor));
    vst1q_f32(out + i + 4, factor == 1.0F ? high : vmulq_n_f32(high, factor));
  }
  return i;
}

inline std::int64_t narrow_by_vectors(Float16* out, const float* in, std::int64_t count, float factor) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const float32x4_t low = vld1q_f32(in + i);
    const float32x4_t high = vld1q_f32(in + i + 4);
    const float16x4_t first = vcvt_f16_f32(factor == 1.0F ? low : vmulq_n_f32(low, factor));
    const float16x8_t halves = vcvt_high_f16_f32(first, factor == 1.0F ? high : vmulq_n_f32(high, factor));
    vst1q_u16(&out[i].bits, vreinterpretq_u16_f16(halves));
  }
  return i;
}

#else

inline std::int64_t widen_by_vectors(float*, const Float16*, std::int64_t, float) { return 0; }
inline std::int64_t narrow_by_vectors(Float16*, const float*, std::int64_t, float) { return 0; }

#endif

}  // namespace sirtaki
