#pragma once

/// The functions of generic.h, which says what they do, in AVX2. Part of cpu/vec.h, which explains the pattern.

#include <type_traits>

namespace posenc::cpu {
namespace {

using generic::kHasBf16x2;
using generic::multiply_bf16x2;
using generic::scatter;

/// The first n of eight 32-bit lanes set, for masked loads and stores (at::vec goes through memory there).
inline __m256i lanes_below(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <typename T>
inline Vec<T> load_partial(const T* p, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm256_maskload_ps(p, lanes_below(n)));
  } else if constexpr (sizeof(T) == 2) {
    if (n % 2 == 0) {
      return Vec<T>(_mm256_maskload_epi32(reinterpret_cast<const int*>(p), lanes_below(n / 2)));
    }
  }
  return generic::load_partial(p, n);
}

template <typename T>
inline void store_partial(T* p, const Vec<T>& v, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    _mm256_maskstore_ps(p, lanes_below(n), v);
    return;
  } else if constexpr (sizeof(T) == 2) {
    if (n % 2 == 0) {
      _mm256_maskstore_epi32(reinterpret_cast<int*>(p), lanes_below(n / 2), v);
      return;
    }
  }
  generic::store_partial(p, v, n);
}

template <typename T>
inline Vec<T> keep_in_register(const Vec<T>& v) {
  if constexpr (std::is_same_v<T, float>) {
    __m256 lanes = v;
    asm("" : "+x"(lanes));
    return lanes;
  }
  return v;
}

inline Vf narrow(const Vd& low, const Vd& high) {
  return Vf(_mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low)));
}

inline Vi narrow_integers(const Vd& low, const Vd& high) {
  return Vi(_mm256_set_m128i(_mm256_cvtpd_epi32(high), _mm256_cvtpd_epi32(low)));
}

inline Vd product_error(const Vd& a, const Vd& b, const Vd& product) { return at::vec::fmsub(a, b, product); }

template <typename T>
inline Vec<T> swap_neighbours(const Vec<T>& v) {
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm256_permute_ps(v, 0xb1));
  } else {
    return Vd(_mm256_permute_pd(v, 0x5));
  }
}

inline bool any_nan(const Vf& a, const Vf& b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }

template <typename T>
inline bool any_lane(const Vec<T>& mask) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm256_movemask_ps(mask) != 0;
  } else {
    return _mm256_movemask_pd(mask) != 0;
  }
}

inline float sum_lanes(const Vf& v) {
  const __m256 x = v;
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

inline double sum_lanes(const Vd& v) { return generic::sum_lanes(v); }

template <typename T>
inline __attribute__((always_inline)) Vec<T> lane_sums(const Vec<T>* v) {
  if constexpr (std::is_same_v<T, float>) {
    const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  } else {
    return generic::lane_sums(v);
  }
}

inline Vi join_upper_halves(const Vi& even, const Vi& odd) {
  return Vi(_mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa));
}

}  // namespace
}  // namespace posenc::cpu
