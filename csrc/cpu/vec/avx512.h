#pragma once

/// The functions of generic.h, which says what they do, in AVX-512. Part of cpu/vec.h, which explains the pattern.

#include <type_traits>

namespace posenc::cpu {
namespace {

using generic::load_partial;
using generic::store_partial;

template <typename T>
inline Vec<T> keep_in_register(const Vec<T>& v) {
  if constexpr (std::is_same_v<T, float>) {
    __m512 lanes = v;
    asm("" : "+v"(lanes));
    return lanes;
  }
  return v;
}

inline Vf narrow(const Vd& low, const Vd& high) {
  return Vf(_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1));
}

inline Vi narrow_integers(const Vd& low, const Vd& high) {
  return Vi(_mm512_inserti32x8(_mm512_castsi256_si512(_mm512_cvtpd_epi32(low)), _mm512_cvtpd_epi32(high), 1));
}

inline Vd product_error(const Vd& a, const Vd& b, const Vd& product) { return at::vec::fmsub(a, b, product); }

template <typename T>
inline Vec<T> swap_neighbours(const Vec<T>& v) {
  if constexpr (std::is_same_v<T, float>) {
    return Vf(_mm512_permute_ps(v, 0xb1));
  } else {
    return Vd(_mm512_permute_pd(v, 0x55));
  }
}

inline constexpr bool kHasBf16x2 = true;

inline Vf multiply_bf16x2(const Vf& a, const Vf& b, const Vf& sum) {
  __m512 result = sum;
  // Not an intrinsic: these files are compiled for processors that lack the instruction.
  asm("vdpbf16ps %2, %1, %0" : "+v"(result) : "v"(static_cast<__m512>(a)), "v"(static_cast<__m512>(b)));
  return result;
}

inline bool any_nan(const Vf& a, const Vf& b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

template <typename T>
inline bool any_lane(const Vec<T>& mask) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_movepi32_mask(_mm512_castps_si512(mask)) != 0;
  } else {
    return _mm512_movepi64_mask(_mm512_castpd_si512(mask)) != 0;
  }
}

template <typename T>
inline void scatter(const Vec<T>& v, const Vec<at::vec::int_same_size_t<T>>& index, const Vec<T>& mask, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    _mm512_mask_i32scatter_ps(to, _mm512_movepi32_mask(_mm512_castps_si512(mask)), index, v, sizeof(T));
  } else {
    _mm512_mask_i64scatter_pd(to, _mm512_movepi64_mask(_mm512_castpd_si512(mask)), index, v, sizeof(T));
  }
}

inline float sum_lanes(const Vf& v) { return _mm512_reduce_add_ps(v); }

inline double sum_lanes(const Vd& v) { return generic::sum_lanes(v); }

template <typename T>
inline __attribute__((always_inline)) Vec<T> lane_sums(const Vec<T>* v) {
  if constexpr (std::is_same_v<T, float>) {
    __m512 twos[8], fours[4], eights[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      twos[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(twos[2 * i]), b = _mm512_castps_pd(twos[2 * i + 1]);
      fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const auto join = [](__m512 a, __m512 b) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      eights[i] = join(fours[2 * i], fours[2 * i + 1]);
    }
    return join(eights[0], eights[1]);
  } else {
    return generic::lane_sums(v);
  }
}

inline Vi join_upper_halves(const Vi& even, const Vi& odd) {
  return Vi(_mm512_mask_mov_epi16(_mm512_srli_epi32(even, 16), 0xaaaaaaaa, odd));
}

}  // namespace
}  // namespace posenc::cpu
